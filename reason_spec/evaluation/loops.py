"""Where a text begins to repeat itself, and when its tokens before that were final.

Small models often end in a loop. A draft predicts a loop almost without error, so loops would flatter every
acceptance rate and speed-up: measurements end where one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.timeline import Timeline

LOOP_TOKENS: Final = 20
LOOP_TIMES: Final = 3


class LoopScanner:
    """Finds the beginning of a loop while a text is written.

    A loop begins where the same ``length`` tokens begin for the ``times``-th time. Occurrences may overlap,
    so a loop of few tokens is found after little more than ``length`` of them.
    """

    def __init__(self, length: int = LOOP_TOKENS, times: int = LOOP_TIMES) -> None:
        self._length, self._times = length, times
        self._tokens: list[int] = []
        self._counts: Counter[tuple[int, ...]] = Counter()
        self.start: int | None = None
        """Where the loop begins; None while there is none."""

    def feed(self, tokens: Iterable[int]) -> int | None:
        """Take the next tokens; return ``start``."""
        for token in tokens:
            if self.start is not None:
                break
            self._tokens.append(token)
            place = len(self._tokens) - self._length
            if place < 0:
                continue
            window = tuple(self._tokens[place:])
            self._counts[window] += 1
            if self._counts[window] == self._times:
                self.start = place
        return self.start


def loop_start(tokens: Iterable[int]) -> int | None:
    """Return where a whole text begins to loop; None where it does not."""
    return LoopScanner().feed(tokens)


def seconds_until(marks: Iterable[tuple[int, float]], num_tokens: int) -> float:
    """Return when the first ``num_tokens`` tokens were final, on straight lines between marks.

    Args:
        marks: numbers of final tokens and the seconds at which they were, both ascending.
    """
    count_before, seconds_before = 0, 0.0
    for count, seconds in marks:
        if count >= num_tokens and count > count_before:
            share = (num_tokens - count_before) / (count - count_before)
            return seconds_before + share * (seconds - seconds_before)
        count_before, seconds_before = count, seconds
    return seconds_before


def until_loop(outcome: Outcome, timeline: Timeline | None) -> Outcome:
    """Return an answer without its loop: the tokens before it, and the seconds they took.

    Without a timeline the seconds are divided evenly among the tokens. An answer without a loop is returned
    as it is.
    """
    end = loop_start(outcome.token_ids)
    if not end:
        return outcome
    kept, left = [], end
    for step in outcome.steps:
        if left <= 0:
            break
        ids = step.token_ids[:left]
        # The text of a step that was cut is not needed for its rates and times.
        kept.append(replace(step, token_ids=ids, tokens=len(ids)))
        left -= len(ids)
    marks = [(outcome.tokens, outcome.seconds)] if timeline is None else _final_marks(timeline)
    return replace(outcome, steps=tuple(kept), tokens=end, seconds=seconds_until(marks, end), finish="length")


def _final_marks(timeline: Timeline) -> list[tuple[int, float]]:
    marks, total = [], 0
    for mark in timeline.marks:
        if mark.kind == "final":
            total += mark.num_tokens
            marks.append((total, mark.at))
    return marks
