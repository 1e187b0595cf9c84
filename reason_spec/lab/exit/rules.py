"""Rules that stop a thinking: a policy, the best possible stop, and published rules on text alone.

DEER (arXiv 2504.15895) and Dynasor (arXiv 2412.20993) ask the model for a trial answer by a probe. Here,
without a model, the trial answer is the value that the text states at that place, and DEER's confidence of
the trial is left out. Both are therefore not the published methods but their text-only forms; `live_rules`
asks a model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from reason_spec.exit.features import Candidate
from reason_spec.exit.policy import Choice, ExitPolicy
from reason_spec.exit.statements import RatedStatement
from reason_spec.exit.trials import DEER_TRIGGER, DYNASOR_AGREEING, DYNASOR_DOUBT, DYNASOR_TOKENS
from reason_spec.exit.values import VALUE_FEATURES
from reason_spec.lab.exit.traces import ReadTrace

CHARACTERS_PER_TOKEN: Final = 4
_LAST_CONCLUSION: Final = VALUE_FEATURES.index("is_last_conclusion")


class Stop(NamedTuple):
    """A stop after step ``step`` (from 0) with this answer."""

    step: int
    answer: str


Rule: TypeAlias = Callable[[ReadTrace], Stop | None]


def stated(candidates: tuple[Candidate, ...]) -> Candidate | None:
    """Return the value that the text concluded last."""
    return next((candidate for candidate in candidates if candidate.features[_LAST_CONCLUSION]), None)


def choices(policy: ExitPolicy, read: ReadTrace) -> Iterator[Choice | None]:
    """Yield the most likely answer after each step."""
    rated: list[RatedStatement] = []
    if policy.reading is not None and read.statements:
        margins = policy.reading.margins(np.array([one.state for one in read.statements], np.float32))
        rated = [RatedStatement(one.value, float(m)) for one, m in zip(read.statements, margins, strict=True)]
    ends = [one.step for one in read.statements]
    for step, candidates in enumerate(read.candidates):
        yield policy.best(candidates, rated[: bisect_right(ends, step)])


def policy_rule(policy: ExitPolicy) -> Rule:
    """Stop at the first step at which the best chance reaches the policy's threshold."""

    def rule(read: ReadTrace) -> Stop | None:
        for step, best in enumerate(choices(policy, read)):
            if best is not None and best.chance >= policy.threshold:
                return Stop(step, best.answer)
        return None

    return rule


def same_number_twice(read: ReadTrace) -> Stop | None:
    """Stop when two steps in a row conclude the same value."""
    for step, (before, now) in enumerate(pairwise(map(stated, read.candidates)), start=1):
        if before is not None and now is not None and before.value == now.value:
            return Stop(step, now.text)
    return None


def deer_text(read: ReadTrace) -> Stop | None:
    """Stop before the first step that begins with a trigger word of DEER, once a value is stated."""
    for step, text in enumerate(read.steps[1:]):
        value = stated(read.candidates[step])
        if value is not None and DEER_TRIGGER.match(text):
            return Stop(step, value.text)
    return None


def dynasor_text(num_agreeing: int) -> Rule:
    """Stop when the last probes, one each 64 tokens, agree and none of their steps has a word of doubt."""
    spacing = DYNASOR_TOKENS * CHARACTERS_PER_TOKEN

    def rule(read: ReadTrace) -> Stop | None:
        agreeing, last, next_probe = 0, None, spacing
        for step, (end, candidates) in enumerate(zip(read.ends, read.candidates, strict=True)):
            if end < next_probe:
                continue
            next_probe = end - end % spacing + spacing
            value = stated(candidates)
            if value is None or DYNASOR_DOUBT.search(read.steps[step]):
                agreeing, last = 0, None
                continue
            agreeing = agreeing + 1 if last is not None and value.value == last else 1
            last = value.value
            if agreeing >= num_agreeing:
                return Stop(step, value.text)
        return None

    return rule


def oracle(is_right: Callable[[ReadTrace, str], bool]) -> Rule:
    """Stop at the first step at which a candidate is right: no policy over these candidates stops sooner."""

    def rule(read: ReadTrace) -> Stop | None:
        for step, candidates in enumerate(read.candidates):
            for candidate in candidates:
                if is_right(read, candidate.text):
                    return Stop(step, candidate.text)
        return None

    return rule


PUBLISHED: Final[Mapping[str, Rule]] = {
    "same number twice": same_number_twice,
    "DEER, text only": deer_text,
    **{f"Dynasor, text only, k = {k}": dynasor_text(k) for k in DYNASOR_AGREEING},
}
