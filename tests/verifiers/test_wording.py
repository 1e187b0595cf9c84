"""Opposites, negations and another order of the same words leave a step undecided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.verifiers.wording import other_wording


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ("The red car is cheaper.", "The red car is costlier.", "cheaper in one step, costlier in the other"),
        ("Ana gave him 3.", "He received 3 from Ana.", "gave in one step, received in the other"),
        (
            "The cost before and before it.",
            "The cost before and after it.",
            "before in one step, after in the other",
        ),
        ("It can be even.", "It cannot be even.", "one step is negated more often"),
        ("He doesn't pay.", "He pays.", "one step is negated more often"),
        ("Add 4 and then double 3.", "Double 3 and then add 4.", "the same words in another order"),
    ],
)
def test_each_difference_is_named(a: str, b: str, reason: str) -> None:
    assert other_wording(a, b) == reason
    assert other_wording(b, a) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Ana has more.", "Ana has 3 pens more."),
        ("The width is 3 and the length 5.", "So the width: 3, and length: 5."),
        ("3 * 20 = 60 beads", "20 * 3 = 60 beads"),
        ("So we cannot pay.", "We can't pay."),
    ],
)
def test_other_words_alone_are_no_difference(a: str, b: str) -> None:
    assert other_wording(a, b) is None


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz not more less 12+=", max_size=60))
def test_a_step_does_not_differ_from_itself(text: str) -> None:
    assert other_wording(text, text) is None
