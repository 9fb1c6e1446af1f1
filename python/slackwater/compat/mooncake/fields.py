"""Attributes whose values are checked when they are assigned."""

from collections.abc import Callable
from typing import Any, Protocol, Self, overload


class Fields(Protocol):
    """What has such attributes."""

    _values: dict[str, Any]

    def _changed(self) -> None:
        """Called after one was assigned."""


class Field:
    """An attribute whose values are checked when they are assigned."""

    def __init__(self, default: Any, check: Callable[[Any], Any], expected: str) -> None:
        self.default, self.check, self.expected = default, check, expected

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: "Fields", owner: type) -> Any: ...
    def __get__(self, instance: "Fields | None", owner: type) -> Any:
        if instance is None:
            return self
        value = instance._values[self.name]
        # Changing what was read does not change what it was read of.
        return list(value) if isinstance(value, list) else value

    def __set__(self, instance: "Fields", value: Any) -> None:
        try:
            taken = self.check(value)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{self.name}: expected {self.expected}, found {value!r}") from None
        instance._values[self.name] = taken
        instance._changed()


def defaults(kind: type) -> dict[str, Any]:
    """The values that the attributes of a class begin with."""
    fields = {name: field.default for name, field in vars(kind).items() if isinstance(field, Field)}
    return {name: list(value) if isinstance(value, list) else value for name, value in fields.items()}


def whole(least: int, most: int) -> Callable[[Any], int]:
    """Takes whole numbers in these bounds."""

    def check(value: Any) -> int:
        if isinstance(value, float):
            raise TypeError
        number = value.__index__() if hasattr(value, "__index__") else None
        if number is None or not least <= number <= most:
            raise TypeError
        return int(number)

    return check


def truth(value: Any) -> bool:
    """Takes what is true or false, and None for false."""
    if value is None:
        return False
    if isinstance(value, (str, bytes, list, tuple, dict)):
        raise TypeError
    return bool(value)


def text(value: Any) -> str:
    """Takes a text, also as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value


def texts(value: Any) -> list[str]:
    """Takes a list of texts."""
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return [text(item) for item in value]


def or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Takes None too."""
    return lambda value: None if value is None else check(value)


def member(kind: type) -> Callable[[Any], Any]:
    """Takes objects of a class."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return check
