"""The display of a run in progress. The command line implements `RunView`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from reason_spec.evaluation.outcome import Outcome

CountAnswer: TypeAlias = Callable[[Outcome], None]
"""Counts a finished answer."""
Totals: TypeAlias = Mapping[tuple[str, str], int]
"""Number of answers by task and strategy."""
ShowPhase: TypeAlias = Callable[[str, float], None]
"""Shows the current phase of something that takes long, and the seconds so far."""


class RunView(Protocol):
    """Shows notes, warnings and progress."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def status(self, text: str) -> AbstractContextManager[ShowPhase]:
        """Show ``text`` until the context ends."""

    def progress(self, totals: Totals, done: Sequence[Outcome]) -> AbstractContextManager[CountAnswer]:
        """Show the progress of a run; ``done`` are the answers of earlier starts."""


class SilentView:
    """Shows nothing."""

    def say(self, text: str) -> None:
        return None

    warn = say

    @contextmanager
    def status(self, text: str) -> Iterator[ShowPhase]:
        yield lambda *_: None

    @contextmanager
    def progress(self, totals: Totals, done: Sequence[Outcome]) -> Iterator[CountAnswer]:
        yield lambda _: None
