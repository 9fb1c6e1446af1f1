"""Views of several values."""

from types import TracebackType

from ._native import View
from .errors import SlackwaterError


class Views(list[View | None | SlackwaterError]):
    """The views of one call: for each key its `View`, None, or the exception.

    A context manager: its block gets a list with the `memoryview` of each view, and None and exceptions in their places.
    At the end of the block the views are closed and the list is emptied.
    """

    _given: list[memoryview | None | SlackwaterError] | None = None

    def close(self) -> None:
        """Closes every view."""
        if self._given is not None:
            # The list would be another holder of each memoryview.
            self._given.clear()
        for view in self:
            if isinstance(view, View):
                view.close()

    def __enter__(self) -> list[memoryview | None | SlackwaterError]:
        self._given = [view.__enter__() if isinstance(view, View) else view for view in self]
        return self._given

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
