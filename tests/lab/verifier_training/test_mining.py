"""Pairs of steps from solutions: the same make the same calculation, changed ones say something else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.lab.verifier_training.changes import Problem, changed_steps
from reason_spec.lab.verifier_training.mining import StepPair, mine_pairs
from reason_spec.lab.verifier_training.rewrites import REWRITES, rewritten
from reason_spec.verifiers.evidence import same_work
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.quantities import read_quantities
from reason_spec.verifiers.semantic import squeezed

QUESTION = "Tom buys 3 boxes with 12 pens each and gives Ana 5 pens. How many pens does Tom have left?"
SOLUTIONS = {
    "one": (
        "First, we find the number of pens in the boxes: 3 boxes * 12 pens/box = 36 pens.\n\n"
        "Then we subtract the pens that Tom gave to Ana: 36 - 5 = 31 pens.\n\nTom has 31 pens left."
    ),
    "two": (
        "Tom has \\(3 \\times 12 = 36\\) pens in the boxes.\n\n"
        "After he gave Ana 5 pens, Tom has \\[ 36 - 5 = 31 \\] pens.\n\nSo Tom has 31 pens left."
    ),
    "three": (
        "Pens in all boxes of Tom: 3 times 12 is 36.\n\nPens left when 5 are given to Ana: 36 - 5 = 31.\n\n"
        "Therefore Tom has 31 pens left."
    ),
}


def mined(seed: int = 0) -> list[StepPair]:
    return list(mine_pairs("1", QUESTION, SOLUTIONS, seed))


def test_steps_of_two_writers_with_one_calculation_are_the_same() -> None:
    same = [pair for pair in mined() if pair.kind == "calculation"]
    assert same
    for pair in same:
        a, b = read_quantities(pair.a), read_quantities(pair.b)
        assert {(c.operands, c.operators) for c in a.calculations} == {
            (c.operands, c.operators) for c in b.calculations
        }
        assert pair.writers[0] != pair.writers[1]


def test_both_labels_and_all_kinds_of_change_occur() -> None:
    pairs = [pair for seed in range(5) for pair in mined(seed)]
    assert {True, False} == {pair.same for pair in pairs}
    kinds = {pair.kind for pair in pairs if not pair.same}
    assert {"number", "operation", "the step before", "carried on", "another step"} <= kinds


def test_no_pair_is_one_step_twice_nor_comes_twice() -> None:
    pairs = mined()
    assert all(squeezed(pair.a) != squeezed(pair.b) for pair in pairs)
    assert len({(pair.a, pair.b) for pair in pairs}) == len(pairs)


def test_a_seed_gives_the_same_pairs_again() -> None:
    assert mined(3) == mined(3)
    assert mined(3) != mined(4)


def test_a_calculation_that_stands_for_two_things_makes_no_pair() -> None:
    twice = "Red pens cost 2 * 5 = 10 dollars.\n\nAmong animals there are 2 * 5 = 10 legs."
    pairs = list(mine_pairs("1", "?", {"one": twice, "two": twice.replace("cost", "make")}, 0))
    assert not [pair for pair in pairs if pair.kind == "calculation"]


@given(st.text(max_size=200), st.text(max_size=200), st.integers(0, 9))
def test_any_texts_can_be_mined(one: str, other: str, seed: int) -> None:
    for pair in mine_pairs("1", one, {"a": one, "b": other}, seed):
        assert pair.a.strip()


STEPS = [step for text in SOLUTIONS.values() for step in text.split("\n\n")]


@pytest.mark.parametrize(
    "step", [*STEPS, "So each of the two kids gets $5, which is 50% of it: 2*5 = 1,000."]
)
def test_a_rewrite_keeps_the_numbers(step: str) -> None:
    found = {rewritten(step, Random(seed)) for seed in range(60)} - {None}
    assert len(found) >= 4
    for text in found:
        assert text is not None
        assert find_objection(text, step, "") is None, text


def test_each_rewrite_finds_a_place() -> None:
    step = "So we need to calculate the price of two pens: 2 * $5 is 10 dollars."
    for rewrite in REWRITES:
        assert any(rewrite(step, Random(seed)) not in (None, step) for seed in range(9)), rewrite
        assert rewrite("", Random(0)) is None


def test_a_step_in_other_words_is_the_same() -> None:
    pairs = [pair for pair in mined() if pair.kind == "rewritten"]
    assert pairs
    assert all(pair.same for pair in pairs)


@pytest.mark.parametrize("seed", range(10))
def test_a_change_leaves_another_step(seed: int) -> None:
    step = "Tom gives Ana 5 of his 36 pens, so he has 36 - 5 = 31 pens on Monday. Ana is happy after that."
    problem = Problem.read(QUESTION, list(SOLUTIONS.values()))
    found = changed_steps(step, problem, Random(seed))
    assert {"number", "operation", "order", "negation", "sentence dropped"} <= found.keys()
    for kind, changed in found.items():
        assert squeezed(changed) != squeezed(step), kind


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("3 sessions per week times 180 meters/session gives 540 meters/week.", "operation"),
        ("The bill is $100, so over a year, that's 100 times 12 = $1200.", "variable"),
        ("We know Total Cost and find the Unit Price.", "entity"),
        ("Two Tom: 19 years", "entity"),
        ("The price that the 4 drilled cost.", "noun of the problem"),
    ],
)
def test_what_is_no_calculation_formula_name_or_noun_is_not_changed(step: str, kind: str) -> None:
    problem = Problem.read(QUESTION, [step])
    assert all(kind not in changed_steps(step, problem, Random(seed)) for seed in range(10))


def test_an_exchanged_word_contradicts_the_step_beside_it() -> None:
    """A step that names no unit, person or thing may be the other one with another unit."""
    solutions = {"one": "So Tom runs 3 * 20 = 60 miles.", "two": "Together Tom runs 3 * 20 = 60."}
    exchanged = [
        pair
        for seed in range(12)
        for pair in mine_pairs("1", "Tom runs 20 miles a day. How far is it?", solutions, seed)
        if pair.kind == "unit"
    ]
    assert exchanged
    for pair in exchanged:
        assert "miles" in pair.b, pair


@pytest.mark.parametrize(
    "announced",
    [
        "The question is asking how many pairs he was able to arrange.",
        "First, I need to figure out how many pairs he could actually arrange.",
    ],
)
def test_two_announcements_of_one_thing_are_not_labelled_as_different(announced: str) -> None:
    """They stand in different places, and say the same."""
    solutions = {
        "one": f"We need to find how many pairs he arranged.\n\n{announced}\n\nPairs: 40 / 2 = 20 pairs.",
        "two": f"{announced}\n\nThe pairs are 40 / 2 = 20 pairs.\n\nSo he arranged 20 pairs of shoes.",
    }
    others = [
        pair
        for seed in range(8)
        for pair in mine_pairs("1", "He has 40 shoes. How many pairs?", solutions, seed)
        if not pair.same and "how many" in pair.a and "how many" in pair.b
    ]
    assert not [pair for pair in others if pair.kind in ("another step", "the step before", "the step after")]


def test_a_result_and_its_calculation_are_not_labelled_as_different() -> None:
    """ "Therefore, Tom has 31 pens" beside "36 - 5 = 31 pens", which leads to it."""
    others = [pair for seed in range(8) for pair in mined(seed) if not pair.same]
    for pair in others:
        if pair.kind in ("another step", "the step before", "the step after"):
            assert not ("36 - 5" in pair.a and "31 pens left." in pair.b), pair


def test_a_step_carried_on_has_a_number_more() -> None:
    """Else the sentence more may only say what the other step implies."""

    def carried(one: str, two: str) -> list[StepPair]:
        solutions = {
            "one": f"Tom runs 3 * 20 = 60 miles.\n\n{one}",
            "two": f"Together Tom runs 3 * 20 = 60 miles.\n\n{two}",
        }
        question = "Tom runs 20 miles on each of 3 days. How far is it?"
        pairs = [pair for seed in range(8) for pair in mine_pairs("1", question, solutions, seed)]
        assert any(pair.kind == "calculation" for pair in pairs)
        return [pair for pair in pairs if pair.kind in ("carried on", "the step before too")]

    assert not carried("Hmm, let me check that once more.", "Wait, is that right so far?")
    assert carried("He pays 75 dollars for that.", "So Tom pays 75 dollars.")


def test_a_step_that_only_explains_more_is_not_labelled_as_another_one() -> None:
    """Beside "Tom has 3 * 12 = 36 pens" the words that led to it add nothing, a further result does."""
    question = "Tom has 3 boxes with 12 pens. He gets 4 pens. How many pens has he?"
    solutions = {
        "one": "A shop sold Tom 3 cardboard boxes with 12 colourful pens.\n\n"
        "So that makes 3 * 12 = 36 pens in all boxes.\n\nWith the new ones Tom has 36 + 4 = 40 pens.",
        "two": "The pens in the boxes of Tom: 3 * 12 = 36 pens.\n\nThen Tom has 36 + 4 = 40 pens with all.",
    }
    others = [
        pair
        for seed in range(6)
        for pair in mine_pairs("1", question, solutions, seed)
        if not pair.same and pair.kind in ("the step before too", "sentence dropped")
    ]
    assert others
    for pair in others:
        assert not same_work(read_quantities(pair.a), read_quantities(pair.b)), pair
