"""Group problems by difficulty: by the level in their file, else by the length of the baseline's answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, quantiles

from reason_spec.evaluation.outcome import Outcome, share

_QUARTERS = ("shortest", "shorter", "longer", "longest")
_LEVELS_AT_MOST = 12
"""More levels than this are names, not a scale; the length is used instead."""


@dataclass(frozen=True, slots=True)
class Group:
    """Problems of one difficulty. ``place`` is its rank, ``detail`` the range of lengths."""

    place: int
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of one strategy on the problems of a group.

    ``speedup`` is the baseline's mean seconds over the strategy's, on the answers that both have.
    """

    group: Group
    num_problems: int
    num_answers: int
    num_graded: int
    num_correct: int
    num_accepted: int
    num_verdicts: int
    alpha_token: float | None
    speedup: float | None


def group_problems(outcomes: Sequence[Outcome], baseline: str) -> dict[str, Group]:
    """Return the group of each problem by its id; none where there are fewer than four problems."""
    return _by_level(outcomes) or _by_length(
        [outcome for outcome in outcomes if outcome.strategy == baseline]
    )


def count_groups(
    outcomes: Sequence[Outcome], groups: dict[str, Group], strategy: str, baseline: str
) -> tuple[GroupCounts, ...]:
    """Return the counts of a strategy in each group, from easy to hard."""
    seconds = {(item.id, item.sample): item.seconds for item in outcomes if item.strategy == baseline}
    by_group: dict[Group, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.strategy == strategy and outcome.id in groups:
            by_group.setdefault(groups[outcome.id], []).append(outcome)
    return tuple(
        _count(group, by_group[group], seconds) for group in sorted(by_group, key=lambda group: group.place)
    )


def _count(group: Group, outcomes: Sequence[Outcome], seconds: dict[tuple[str, int], float]) -> GroupCounts:
    paired = [outcome for outcome in outcomes if (outcome.id, outcome.sample) in seconds]
    own = sum(outcome.seconds for outcome in paired)
    others = sum(seconds[outcome.id, outcome.sample] for outcome in paired)
    return GroupCounts(
        group=group,
        num_problems=len({outcome.id for outcome in outcomes}),
        num_answers=len(outcomes),
        num_graded=sum(outcome.answer is not None for outcome in outcomes),
        num_correct=sum(outcome.correct is True for outcome in outcomes),
        num_accepted=sum(outcome.usage.verdicts["accept"] for outcome in outcomes),
        num_verdicts=sum(outcome.usage.num_verdicts for outcome in outcomes),
        alpha_token=share(
            sum(outcome.usage.target.num_accepted_draft_tokens for outcome in outcomes),
            sum(outcome.usage.target.num_drafted_tokens for outcome in outcomes),
        ),
        speedup=others / own if own > 0 else None,
    )


def _by_level(outcomes: Iterable[Outcome]) -> dict[str, Group]:
    levels = {outcome.id: outcome.level for outcome in outcomes}
    names = sorted({level for level in levels.values() if level is not None}, key=_natural)
    if not 2 <= len(names) <= _LEVELS_AT_MOST:
        return {}
    groups = {
        name: Group(place, f"level {name}" if name[:1].isdigit() else name)
        for place, name in enumerate(names)
    }
    return {problem: groups[level] for problem, level in levels.items() if level is not None}


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts ``Level 10`` after ``Level 9``."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _by_length(baseline: Sequence[Outcome]) -> dict[str, Group]:
    tokens: dict[str, list[int]] = {}
    for outcome in baseline:
        tokens.setdefault(outcome.id, []).append(outcome.tokens)
    lengths = {problem: fmean(counts) for problem, counts in tokens.items()}
    if len(lengths) < len(_QUARTERS):
        return {}
    limits = quantiles(lengths.values(), n=len(_QUARTERS), method="inclusive")
    bounds = [min(lengths.values()), *limits, max(lengths.values())]
    groups = [
        Group(place, name, f"{low:.0f} to {high:.0f} tokens")
        for place, (name, (low, high)) in enumerate(zip(_QUARTERS, pairwise(bounds), strict=True))
    ]
    return {problem: groups[sum(length > limit for limit in limits)] for problem, length in lengths.items()}
