from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.repeated import (
    Votes,
    count_votes,
    majority_at_k,
    normal_form,
    pass_at_k,
    sizes_up_to,
)
from tests.evaluation.synthetic import make_outcome

votes = st.builds(
    Votes,
    st.integers(0, 4),
    st.lists(st.integers(1, 3), max_size=3).map(lambda sizes: tuple(sorted(sizes, reverse=True))),
    st.integers(0, 2),
).filter(lambda vote: vote.num_samples > 0)


def samples_of(vote: Votes) -> list[str]:
    """Write votes out; a silent sample is an empty text."""
    wrong = [f"wrong {place}" for place, size in enumerate(vote.others) for _ in range(size)]
    return ["right"] * vote.num_right + wrong + [""] * vote.num_silent


@given(votes)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(vote: Votes) -> None:
    samples = samples_of(vote)
    for k in range(1, len(samples) + 1):
        hits = sum("right" in subset for subset in combinations(samples, k))
        assert pass_at_k(len(samples), vote.num_right, k) == pytest.approx(hits / comb(len(samples), k))


@given(votes)
def test_majority_at_k_is_the_share_of_subsets_where_the_right_answer_wins(vote: Votes) -> None:
    samples = samples_of(vote)
    for k in range(1, len(samples) + 1):
        wins = 0.0
        for subset in combinations(samples, k):
            counts = {answer: subset.count(answer) for answer in subset if answer}
            top = [answer for answer, count in counts.items() if count == max(counts.values())]
            wins += ("right" in top) / len(top) if top else 0.0
        assert majority_at_k(vote, k) == pytest.approx(wins / comb(len(samples), k))


@given(votes)
def test_pass_at_k_rises_and_one_sample_is_its_own_majority(vote: Votes) -> None:
    count = vote.num_samples
    rates = [pass_at_k(count, vote.num_right, k) for k in range(1, count + 1)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(vote.num_right / count) == majority_at_k(vote, 1)
    for k in range(1, count + 1):
        assert majority_at_k(vote, k) <= rates[k - 1] + 1e-12


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of 8 samples of chance 0.3 its mean is the chance that one of 3 is right."""
    chance = 0.3
    mean = sum(
        comb(8, right) * chance**right * (1 - chance) ** (8 - right) * pass_at_k(8, right, 3)
        for right in range(9)
    )
    assert mean == pytest.approx(1 - (1 - chance) ** 3)


def test_many_samples_are_counted_exactly() -> None:
    assert majority_at_k(Votes(34, tuple([1] * 30), 0), 64) == 1.0
    assert 0 < majority_at_k(Votes(20, (24, 10, 5, 2, 1, 1, 1), 0), 32) < 0.5


def test_answers_are_grouped_as_grading_compares_them() -> None:
    outcomes = [
        make_outcome(correct=True, prediction="0.5"),
        make_outcome(correct=True, prediction=r"\frac{1}{2}"),
        make_outcome(correct=False, prediction="18"),
        make_outcome(correct=False, prediction="$18.00"),
        make_outcome(correct=False, prediction="x + 1"),
        make_outcome(correct=False, prediction="X+1"),
        make_outcome(correct=None, prediction="x^2"),
        make_outcome(correct=False, prediction=None),
    ]
    assert count_votes(outcomes) == Votes(2, (2, 2, 1), 1)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("5 thousand", "5000", True),
        ("5 thousand", "5", False),
        ("2 dozen", "24", True),
        ("5 %", "5", True),
        ("5 %", "0.05", False),
    ],
)
def test_scale_words_are_part_of_a_voted_number_and_percent_signs_are_not(
    first: str, second: str, together: bool
) -> None:
    assert (normal_form(first) == normal_form(second)) is together


def test_where_nobody_answers_nothing_is_solved() -> None:
    assert majority_at_k(Votes(0, (), 3), 2) == 0.0
    assert majority_at_k(Votes(1, (), 3), 4) == 1.0


def test_the_k_that_are_shown() -> None:
    assert [list(sizes_up_to(count)) for count in (0, 1, 2, 5, 8)] == [
        [], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8],
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "right", "k"), [(4, 5, 1), (4, 2, 5), (4, 2, 0), (4, -1, 1)])
def test_impossible_counts_are_refused(count: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(count, right, k)
