"""Rewordings are accepted, changes never; on hand-written pairs in two case files."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.encoder import SentenceEncoder
from reason_spec.verifiers.semantic import SemanticVerifier


def read_cases(name: str) -> list[dict[str, str]]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


REWORDED = read_cases("reworded_pairs.jsonl")
CHANGED = read_cases("changed_pairs.jsonl")
KNOWN_MISSES = (
    "The three friends share the bill of $45",  # the last quantity differs
    "Nina reads 20 pages a day",  # "each day" reads as the owner of the pages
)
"""Rewordings that the guards refuse; each costs time, none costs an answer."""


def judge(minilm: SentenceEncoder, a: str, b: str, context: str = "") -> Verdict:
    steps = (Step(a, (), "draft", "boundary"), Step(b, (), "target", "boundary"))
    verifier = SemanticVerifier(minilm, deadline_seconds=120)
    return asyncio.run(verifier.verify(VerificationContext(context), *steps))


@pytest.mark.parametrize("case", REWORDED, ids=lambda case: case["a"][:40])
def test_a_rewording_is_accepted(case: dict[str, str], minilm: SentenceEncoder) -> None:
    verdict = judge(minilm, case["a"], case["b"], case.get("context", ""))
    if case["a"].startswith(KNOWN_MISSES):
        assert verdict.decision == "unknown"
    else:
        assert verdict.accepted, verdict.reason


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: f"{case['kind']}-{case['a'][:40]}")
def test_a_change_is_never_accepted(case: dict[str, str], minilm: SentenceEncoder) -> None:
    for a, b in ((case["a"], case["b"]), (case["b"], case["a"])):
        verdict = judge(minilm, a, b, case.get("context", ""))
        assert not verdict.accepted, verdict.reason
        assert verdict.score is not None
        assert verdict.score <= 0.75


NUMBER = re.compile(r"(?<![\w.,{])\d+(?![\w,}])")
CASES_WITH_NUMBERS = [case for case in REWORDED if NUMBER.search(case["a"])]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.sampled_from(CASES_WITH_NUMBERS), st.integers(0, 99), st.integers(1, 40))
def test_a_number_changed_in_a_rewording_is_never_accepted(
    minilm: SentenceEncoder, case: dict[str, str], place: int, change: int
) -> None:
    numbers = list(NUMBER.finditer(case["a"]))
    number = numbers[place % len(numbers)]
    other = str(int(number[0]) + change)
    # See `KNOWN_WRONG_ACCEPTS`.
    assume(other not in {match[0] for match in numbers})
    changed = case["a"][: number.start()] + other + case["a"][number.end() :]
    assert not judge(minilm, changed, case["b"]).accepted, changed


KNOWN_WRONG_ACCEPTS = (
    ("8 more than Ana's 47", "47 more than Ana's 47"),
    ("Each box holds 6 eggs", "Each box holds 24 eggs"),
    ("eggs for $2 each", "eggs for $9 each"),
    ("eggs for $2 each", "eggs for $18 each"),
    ("Twice as many as 8 is 16", "Twice as many as 16 is 16"),
)
"""The gap, of 133 such changes: in the text, a number became another number of the calculation."""


@pytest.mark.parametrize(("original", "changed"), KNOWN_WRONG_ACCEPTS)
def test_known_gap_a_number_replaced_by_another_one_of_the_calculation_is_accepted(
    minilm: SentenceEncoder, original: str, changed: str
) -> None:
    (case,) = (case for case in CASES_WITH_NUMBERS if original in case["a"])
    assert judge(minilm, case["a"].replace(original, changed), case["b"]).accepted


@pytest.mark.parametrize("case", REWORDED, ids=lambda case: case["a"][:40])
def test_a_step_equals_itself_in_another_layout(case: dict[str, str], minilm: SentenceEncoder) -> None:
    laid_out = f"\n{case['a'].replace('. ', '.  ').replace(' so ', '  so ')} "
    assert judge(minilm, case["a"], laid_out).accepted


def test_undecided_wording_is_decided_by_the_threshold(minilm: SentenceEncoder) -> None:
    steps = [
        Step(text, (), "draft", "boundary") for text in ("We look for the cost.", "We seek the expense.")
    ]
    for threshold, decision in ((-1.0, "accept"), (1.0, "unknown")):
        verifier = SemanticVerifier(minilm, threshold, 120)
        assert asyncio.run(verifier.verify(VerificationContext(), *steps)).decision == decision
