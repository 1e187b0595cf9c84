"""Where a text begins to repeat itself, and when its tokens before that were final.

Small models often end in a loop. A draft predicts a loop almost without error, so loops would flatter every
acceptance rate and speed-up: measurements end where one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.timeline import Timeline

LOOP_TOKENS: Final = 20
LOOP_TIMES: Final = 3


def loop_start(tokens: Sequence[int], length: int = LOOP_TOKENS, times: int = LOOP_TIMES) -> int | None:
    """Return where the same ``length`` tokens begin for the ``times``-th time; None where none do.

    Occurrences may overlap, so a loop of few tokens is found after little more than ``length`` of them.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(len(tokens) - length + 1):
        window = tuple(tokens[start : start + length])
        counts[window] += 1
        if counts[window] == times:
            return start
    return None


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
