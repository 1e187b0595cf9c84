"""Prints the steps of an answer as they become final, with the model that wrote each."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from reason_spec.events import Event
from reason_spec.types import Step

_STYLES = {"draft": "green", "target": "cyan", "cache": "magenta", "inserted": "yellow", "rejected": "dim"}
_LABEL_WIDTH = max(map(len, _STYLES))


class Transcript:
    """The steps of one answer on a terminal or in a pipe.

    Colours and a word in the margin name the writer of a step. Lines are folded to the width of a
    terminal and left alone in a pipe.

    Args:
        plain: print the bare text of the answer and nothing else.
        show_rejected: print rejected drafts, with the reason, before the step that replaces them.
    """

    def __init__(self, console: Console, *, plain: bool = False, show_rejected: bool = False) -> None:
        self._console = console
        self._plain = plain
        self._show_rejected = show_rejected and not plain
        self._rejections: dict[int, list[Event]] = {}
        self._num_steps = 0

    def listen(self, event: Event) -> None:
        """Note a verdict; pass this to the accelerator as its listener."""
        if self._show_rejected and event.kind == "verified" and event.verdict is not None:
            self._rejections.setdefault(event.step_index, []).append(event)

    def print(self, step: Step) -> None:
        """Print the next final step, after the drafts that were rejected for it."""
        if self._plain:
            self._write(step.text)
            return
        for event in self._rejections_for(step):
            assert event.verdict is not None
            reason = event.verdict.reason or event.verdict.decision
            text = Text(event.text.strip(), style="dim strike").append(
                f"  [{reason}]", style="not strike italic"
            )
            self._print_block("rejected", text)
        self._num_steps += 1
        if step.text.strip():
            self._print_block(step.origin, Text(step.text.strip("\n"), style=_STYLES[step.origin]))

    def end(self) -> None:
        """Finish the answer's last line."""
        if self._plain:
            self._write("\n")

    def _write(self, text: str) -> None:
        # Not through the console, which expands tabs.
        self._console.file.write(text)
        self._console.file.flush()

    def _rejections_for(self, step: Step) -> list[Event]:
        """Return the rejected drafts of the step's own branch."""
        events = self._rejections.pop(self._num_steps, [])
        branches = {event.branch for event in events if event.verdict == step.verdict}
        return [
            event
            for event in events
            if event.branch in branches and event.verdict is not None and not event.verdict.accepted
        ]

    def _print_block(self, label: str, text: Text) -> None:
        margin = Text(label.ljust(_LABEL_WIDTH), style=f"bold {_STYLES[label]}")
        empty = Text(" " * _LABEL_WIDTH)
        room = max(20, self._console.width - _LABEL_WIDTH - 4)
        lines = text.wrap(self._console, room) if self._console.is_terminal else text.split("\n")
        for number, line in enumerate(lines):
            row = Text.assemble(empty if number else margin, " | ", line)
            self._console.print(row, soft_wrap=True, highlight=False)
