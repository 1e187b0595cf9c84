"""The display of a run in progress. The command line implements `RunView`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.events import Event

UnitListener: TypeAlias = Callable[[UnitKey, Event], None]
Totals: TypeAlias = Mapping[tuple[str, str], int]
"""Number of answers by task and strategy."""
ShowPhase: TypeAlias = Callable[[str, float], None]
"""Shows the current phase of something that takes long, and the seconds so far."""


class AnswerProgress(Protocol):
    """Follows the answers of a run."""

    def listen(self, key: UnitKey, event: Event) -> None:
        """Take an event of an answer in progress."""

    def add(self, outcome: Outcome) -> None:
        """Count a finished answer."""


class RunView(Protocol):
    """Shows notes, warnings and progress."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def status(self, text: str) -> AbstractContextManager[ShowPhase]:
        """Show ``text`` until the context ends."""

    def progress(self, totals: Totals, done: Sequence[Outcome]) -> AbstractContextManager[AnswerProgress]:
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
    def progress(self, totals: Totals, done: Sequence[Outcome]) -> Iterator[AnswerProgress]:
        yield _SilentProgress()


class _SilentProgress:
    def listen(self, key: UnitKey, event: Event) -> None:
        return None

    def add(self, outcome: Outcome) -> None:
        return None
