"""How objects are put: `ReplicateConfig`."""

from collections.abc import Callable
from typing import Any, Self, overload

from slackwater._native import RawPlan
from slackwater.compat.mooncake.kinds import ObjectDataType, SoftPinAction

INVALID_PARAMS = -600
_DFS_SERVICE_UNAVAILABLE = -1601
_SOFT_PIN_MILLISECONDS_MAX = 86_400_000

# What a plan is made for: a put or an upsert, and whether the call can choose the memory of its own node.
CREATE, UPSERT, CREATE_NEAR, UPSERT_NEAR = range(4)


class _Field:
    """An attribute whose values are checked when they are assigned."""

    def __init__(self, default: Any, check: Callable[[Any], Any], expected: str) -> None:
        self.default, self.check, self.expected = default, check, expected

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: "ReplicateConfig", owner: type) -> Any: ...
    def __get__(self, config: "ReplicateConfig | None", owner: type) -> Any:
        if config is None:
            return self
        value = config._values[self.name]
        # Changing what was read does not change the configuration.
        return list(value) if isinstance(value, list) else value

    def __set__(self, config: "ReplicateConfig", value: Any) -> None:
        try:
            taken = self.check(value)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{self.name}: expected {self.expected}, found {value!r}") from None
        config._values[self.name] = taken
        config._plans.clear()


def _count(most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, float):
            raise TypeError
        number = value.__index__() if hasattr(value, "__index__") else None
        if number is None or not 0 <= number <= most:
            raise TypeError
        return int(number)

    return check


def _truth(value: Any) -> bool:
    if value is None:
        return False
    if isinstance(value, (str, bytes, list, tuple, dict)):
        raise TypeError
    return bool(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return [_text(item) for item in value]


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _member(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return check


class ReplicateConfig:
    """How objects are put. Attributes of a wrong type are refused with a `TypeError` when they are assigned."""

    __slots__ = ("__weakref__", "_plans", "_values")

    replica_num = _Field(1, _count(2**64 - 1), "a whole number that is not negative")
    nof_replica_num = _Field(0, _count(2**64 - 1), "a whole number that is not negative")
    dfs_replica_num = _Field(0, _count(2**64 - 1), "a whole number that is not negative")
    soft_pin_action = _Field(SoftPinAction.PRESERVE, _member(SoftPinAction), "a SoftPinAction")
    soft_pin_ttl_ms = _Field(None, _or_none(_count(2**64 - 1)), "milliseconds or None")
    with_hard_pin = _Field(False, _truth, "a truth")
    preferred_segment = _Field("", _text, "a text")
    preferred_segments = _Field([], _texts, "a list of texts")
    preferred_nof_segments = _Field([], _texts, "a list of texts")
    prefer_alloc_in_same_node = _Field(False, _truth, "a truth")
    data_type = _Field(ObjectDataType.UNKNOWN, _member(ObjectDataType), "an ObjectDataType")
    group_ids = _Field(None, _or_none(_texts), "a list of texts or None")
    session_ids = _Field(None, _or_none(_texts), "a list of texts or None")

    def __init__(self) -> None:
        fields = {name: field for name, field in vars(ReplicateConfig).items() if isinstance(field, _Field)}
        copied = {name: list(field.default) for name, field in fields.items() if isinstance(field.default, list)}
        self._values: dict[str, Any] = {name: field.default for name, field in fields.items()} | copied
        self._plans: dict[int, RawPlan | int] = {}

    @property
    def with_soft_pin(self) -> bool:
        """Whether the object is evicted late; True means the default time."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: Any) -> None:
        if isinstance(value, (str, bytes)):
            raise TypeError(f"with_soft_pin: expected a truth, found {value!r}")
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, bool):
                return str(int(value))
            if isinstance(value, list):
                return f"[{', '.join(value)}]"
            return str(getattr(value, "name", "default" if value is None else value))

        fields = (f"{name}: {shown(value)}" for name, value in self._values.items())
        return f"ReplicateConfig: {{ {', '.join(fields)} }}"

    def _plan(self, kind: int) -> RawPlan | int:
        """The options of such a call, or the code that it is refused with."""
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._make(kind)
        return plan

    def _make(self, kind: int) -> RawPlan | int:
        values = self._values
        replicas, ttl = values["replica_num"], values["soft_pin_ttl_ms"]
        enabled = values["soft_pin_action"] is SoftPinAction.ENABLE
        if values["dfs_replica_num"]:
            return _DFS_SERVICE_UNAVAILABLE
        if values["nof_replica_num"] or not replicas:
            return INVALID_PARAMS
        if ttl is not None and (not enabled or ttl > _SOFT_PIN_MILLISECONDS_MAX):
            return INVALID_PARAMS
        if values["prefer_alloc_in_same_node"] and (kind < CREATE_NEAR or replicas != 1):
            return INVALID_PARAMS
        soft = enabled and ttl != 0
        return RawPlan(
            upsert=kind in (UPSERT, UPSERT_NEAR),
            replicas=min(replicas, 2**32 - 1),
            preferred=[values["preferred_segment"]] if values["preferred_segment"] else values["preferred_segments"],
            pin="hard" if values["with_hard_pin"] else "soft" if soft else "none",
            pin_milliseconds=ttl if soft else None,
            groups=values["group_ids"],
        )


DEFAULT = ReplicateConfig()


def plan_of(config: ReplicateConfig, kind: int) -> RawPlan | int:
    """The options of such a call by this configuration, or the code that it is refused with."""
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config: expected a ReplicateConfig, found {type(config).__name__}")
    return config._plan(kind)
