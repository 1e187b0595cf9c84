"""A changed step is a sentence that a model could write, and says something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from reason_spec.lab.verifier_training.changes import (
    CHANGES,
    Problem,
    change_negation,
    change_stance,
    change_variable,
    drop_sentence,
)
from reason_spec.lab.verifier_training.exchanges import (
    change_direction,
    change_unit,
    exchange_nouns,
    exchange_persons,
    swap_persons,
)
from reason_spec.lab.verifier_training.rewrites import change_opening, change_word
from reason_spec.lab.verifier_training.words import counted_nouns, persons, put_word, singular

QUESTION = (
    "Tom has 3 boxes with 12 pens each. Ana gave Tom 5 stickers, and each of Tom's pens costs $2. Two of the "
    "boxes are red. Every Monday he drives to Paris. How many pens does Tom have?"
)
TEXTS = (
    "First, we find the 12 pens of each box, and there are 3 boxes. Each of the two boxes is red.",
    "She said that Tom has 12 pens and 5 stickers.",
    "The 5 stickers that Ana gave him are no pens. Two pens cost $4, and he goes to Paris.",
)


def found(change: Callable[[str, Random], str | None], text: str) -> set[str | None]:
    """What a change makes of a text, whatever it draws."""
    return {change(text, Random(seed)) for seed in range(40)}


def test_only_persons_are_names() -> None:
    """Neither what opens a sentence, a number word, a day nor a place."""
    assert persons(QUESTION, TEXTS) == ("Ana", "Tom")


def test_only_plurals_that_the_problem_counts_are_nouns() -> None:
    """Neither "each" and "she" nor verbs behind a number, units, nor what the question does not name."""
    texts = (
        *TEXTS,
        "the 4 drilled and 4 each, 12 she has, 7 times 7 times, 5 dollars, 5 dollars, 2 lamps, 2 lamps",
    )
    assert set(counted_nouns(QUESTION, texts)) == {"pens", "boxes", "stickers"}


@pytest.mark.parametrize(
    ("plural", "one"),
    [("boxes", "box"), ("pens", "pen"), ("children", "child"), ("pies", "pie"), ("ponies", "pony"),
     ("houses", "house"), ("branches", "branch"), ("glasses", "glass"), ("pages", "page")],
)  # fmt: skip
def test_singular(plural: str, one: str) -> None:
    assert singular(plural) == one


def test_a_noun_is_exchanged_everywhere_in_the_same_number() -> None:
    nouns = ("pens", "apples")
    assert found(lambda text, rng: exchange_nouns(text, nouns, rng), "12 pens at $2 per pen, a pen each") == {
        "12 apples at $2 per apple, an apple each"
    }


def test_a_noun_that_is_there_already_comes_only_behind_a_result() -> None:
    """Neither "3 boxes in the 3 boxes" nor a part of a compound."""
    nouns = ("pens", "boxes")
    assert found(lambda text, rng: exchange_nouns(text, nouns, rng), "3 boxes * 12 pens = 36 pens") == {
        "3 boxes * 12 pens = 36 boxes"
    }
    assert found(lambda text, rng: exchange_nouns(text, nouns, rng), "the 12 pens in the 3 boxes") == {None}
    for compound in ("He has 3 pen cases.", "He has 3 blue pens."):
        assert found(lambda text, rng: exchange_nouns(text, ("pens", "cars"), rng), compound) == {None}


def test_words_for_the_same_things_are_not_exchanged() -> None:
    nouns = ("children", "kids")
    assert found(lambda text, rng: exchange_nouns(text, nouns, rng), "There are 5 kids.") == {None}


def test_persons_change_places_but_not_in_a_list() -> None:
    names = ("Ana", "Tom")
    assert swap_persons("So Ana gives Tom 5 pens.", names) == "So Tom gives Ana 5 pens."
    assert swap_persons("From Lewis' cost take Ana's.", ("Ana", "Lewis")) == "From Ana's cost take Lewis's."
    assert swap_persons("So Ana and Tom have 5 pens.", names) is None
    assert swap_persons("Two Ana: 19 years", names) is None


def test_a_person_is_exchanged_where_no_pronoun_says_which() -> None:
    names = ("Ana", "Tom")
    assert exchange_persons("Tom has 5 pens, Tom's.", names, Random(0)) == "Ana has 5 pens, Ana's."
    assert exchange_persons("Tom has 5 of his pens.", names, Random(0)) is None
    assert exchange_persons("Tom gives Ana 5 pens.", names, Random(0)) is None


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("He runs 60 miles in an hour.", "He runs 60 miles in a day."),
        ("It takes 2 hours.", "It takes 2 minutes."),
        ("That is 14 hours per week.", "That is 14 hours per day."),
        ("3 hours * 60 minutes/hour = 180 minutes", "3 hours * 60 minutes/hour = 180 seconds"),
    ],
)
def test_another_unit_is_grammatical(text: str, changed: str) -> None:
    assert changed in found(change_unit, text)


def test_no_unit_is_put_beside_itself() -> None:
    """Neither "7 weeks in a week" nor "7 days in a day"."""
    for other in found(change_unit, "There are 7 days in a week."):
        assert other is None or len(re.findall(r"day|week", other)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It is 80 degrees Fahrenheit.",
        "He works a 7-day week.",
        "The price per pen",
        "A number of them",
    ],
)
def test_a_unit_is_not_exchanged_where_it_makes_nonsense(text: str) -> None:
    assert found(change_unit, text) == {None}


@pytest.mark.parametrize(
    "text",
    [
        "First, add up what is left over.",
        "Each box has 12 pens.",
        "He grew 3 inches over the summer.",
        "We start with 100 cookies.",
        "He spent 3 hours there.",
        "That matches the total given.",
        "He is 5 years old.",
        "The answer to the last step is the final answer.",
        "Once more, even if it is no longer so.",
        "This gives 36 pens, all of them red.",
        "His sister ate as many as his brother.",
    ],
)
def test_a_word_that_only_looks_like_a_direction_stays(text: str) -> None:
    assert found(change_direction, text) == {None}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("Tom has 5 more pens than Ana.", "Tom has 5 fewer pens than Ana."),
        ("Tom has 5 more than Ana.", "Tom has 5 less than Ana."),
        ("The sum of the angles is 180.", "The difference of the angles is 180."),
        ("We multiply 3 by 12.", "We divide 3 by 12."),
        ("In the first week he reads.", "In the last week he reads."),
        ("He bought 5 pens.", "He sold 5 pens."),
    ],
)
def test_a_direction_is_turned(text: str, changed: str) -> None:
    assert changed in found(change_direction, text)


@pytest.mark.parametrize(
    "text",
    ["How many pens does Tom have?", "Find what is the cost.", "4 cans * 3 tomatoes per can = 12 tomatoes"],
)
def test_neither_a_question_nor_a_noun_is_negated(text: str) -> None:
    assert found(change_negation, text) == {None}


def test_a_statement_is_negated_once() -> None:
    assert found(change_negation, "The total is 36.") == {"The total is not 36."}
    assert found(change_negation, "The total is not 36.") == {"The total is 36."}


@pytest.mark.parametrize(
    "text", ["Therefore, the price is $9.", "2. Add 300 minutes: 450 + 300 = 750", "So 5."]
)
def test_a_doubt_is_a_sentence(text: str) -> None:
    """No opening behind "maybe", no capital, no number of a list."""
    for other in found(change_stance, text):
        assert other is not None
        assert not re.search(r"(?:aybe|erhaps|that) (?:So|Therefore|The|\d)", other), other
    assert found(change_stance, "What is the price?") == {None}


def test_words_inside_a_formula_are_no_variables() -> None:
    assert found(change_variable, r"\( x = \text{price of a box} \)") == {None}
    assert found(change_variable, r"\( x + y = 5 \)") == {r"\( y + y = 5 \)", r"\( x + x = 5 \)"}


def test_a_dropped_sentence_leaves_words() -> None:
    assert found(drop_sentence, "\\[\n36 + 5 = 41\n\\]") == {None}
    assert found(drop_sentence, "The pens that we count:\n\\[\n36 + 5 = 41\n\\]") == {None}
    assert found(drop_sentence, "He has 36 pens. She has 41 pens.") == {"He has 36 pens.", "She has 41 pens."}


def test_no_opening_comes_before_another_one() -> None:
    for text in ("Wait, but is it so?", "Alternatively, he has 5.", "However, 5 is less."):
        assert found(change_opening, text) == {None}


@pytest.mark.parametrize(
    "text",
    [
        "They get 5 pens each of them.",
        "That leaves so many pens.",
        "We do not have to add.",
        "Find out who he is, or what it is.",
        "A whole number comes in all boxes.",
    ],
)
def test_no_word_is_rewritten_where_its_synonym_does_not_fit(text: str) -> None:
    assert found(change_word, text) == {None}


def test_an_article_fits_its_word() -> None:
    assert put_word("in an hour", 6, 10, "day") == "in a day"
    assert put_word("A pen", 2, 5, "eraser") == "An eraser"
    assert put_word("a box", 2, 5, "unit") == "a unit"


def test_every_change_has_a_place_and_leaves_an_empty_step() -> None:
    step = "The sum of both is \\( x + y = 30 - 6 = 24 \\) hours."
    for kind, change in CHANGES.items():
        assert found(change, step) != {None}, kind
        assert change("", Random(0)) is None, kind


def test_a_problem_is_read_from_its_question_and_solutions() -> None:
    problem = Problem.read(QUESTION, TEXTS)
    assert problem.persons == ("Ana", "Tom")
    assert {"3", "12", "5"} <= set(problem.numbers)
