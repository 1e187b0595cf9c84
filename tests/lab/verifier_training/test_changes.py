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
     ("houses", "house"), ("branches", "branch"), ("glasses", "glass"), ("pages", "page"),
     ("sandwiches", "sandwich"), ("peaches", "peach"), ("coaches", "coach"), ("beaches", "beach"),
     ("headaches", "headache"), ("prizes", "prize"), ("sizes", "size"), ("dishes", "dish"),
     ("heroes", "hero"), ("wolves", "wolf"), ("scarves", "scarf")],
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
    assert swap_persons("Tom's 5 pens are more than Ana's.", names) == "Ana's 5 pens are more than Tom's."
    assert swap_persons("Two Ana: 19 years", names) is None


@pytest.mark.parametrize(
    "text",
    [
        "So Ana and Tom have 5 pens.",
        "Tom's pens + Ana's pens = 5",
        "Add what Tom plus Ana have.",
        "We have Tom's red pens, Ana's pens and others.",
        "The difference between Tom's age and Ana's is 5.",
        "It is the difference between what Tom has and what the others and Ana have.",
        "Ana has been selling her Tom's collection.",
        "Tom's pens are with his older sister Ana.",
    ],
)
def test_persons_do_not_change_places_where_it_says_the_same_or_a_pronoun_shows_whose(text: str) -> None:
    assert swap_persons(text, ("Ana", "Tom")) is None


def test_a_person_is_exchanged_where_no_pronoun_says_which() -> None:
    names = ("Ana", "Tom")
    assert exchange_persons("Tom has 5 pens, Tom's.", names, Random(0)) == "Ana has 5 pens, Ana's."
    assert exchange_persons("Tom has 5 of his pens.", names, Random(0)) is None
    assert exchange_persons("Tom gives Ana 5 pens.", names, Random(0)) is None


@pytest.mark.parametrize(
    ("change", "text", "changed"),
    [
        (change_unit, "He runs 60 miles in an hour.", "He runs 60 miles in a day."),
        (change_unit, "It takes 2 hours.", "It takes 2 minutes."),
        (change_unit, "That is 14 hours per week.", "That is 14 hours per day."),
        (change_unit, "3 hours * 60 minutes/hour = 180 minutes", "3 hours * 60 minutes/hour = 180 seconds"),
        (change_direction, "Tom has 5 more pens than Ana.", "Tom has 5 fewer pens than Ana."),
        (change_direction, "Tom has 5 more than Ana.", "Tom has 5 less than Ana."),
        (change_direction, "The sum of the angles is 180.", "The difference of the angles is 180."),
        (change_direction, "We multiply 3 by 12.", "We divide 3 by 12."),
        (change_direction, "In the first week he reads.", "In the last week he reads."),
        (change_direction, "He bought 5 pens.", "He sold 5 pens."),
        (change_direction, "The 5 children eat.", "The 5 adults eat."),
        (change_negation, "He can buy 4 cans.", "He can not buy 4 cans."),
        (change_stance, "Those who pay get 5 pens.", "That was wrong. Those who pay get 5 pens."),
        (change_stance, "This is where 5 of them live.", "Actually, no. This is where 5 of them live."),
        (change_word, "Since Tom has 5 pens, he stops.", "Because Tom has 5 pens, he stops."),
        (change_word, "Tom stops because he has 5.", "Tom stops since he has 5."),
        (change_word, "We must add 5.", "We have to add 5."),
        (change_word, "It's 5 now.", "It is 5 now."),
        (change_word, "He gets 5 pens.", "He receives 5 pens."),
        (change_word, "It takes an entire day.", "It takes a whole day."),
    ],
)
def test_another_word_is_grammatical(
    change: Callable[[str, Random], str | None], text: str, changed: str
) -> None:
    assert changed in found(change, text)


def test_no_unit_is_put_beside_itself() -> None:
    """Neither "7 weeks in a week" nor "7 days in a day"."""
    for other in found(change_unit, "There are 7 days in a week."):
        assert other is None or len(re.findall(r"day|week", other)) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (change_unit, "It is 80 degrees Fahrenheit."),
        (change_unit, "He works a 7-day week."),
        (change_unit, "The total cost of pens is $5."),
        (change_unit, "The number of pens is 5."),
        (change_direction, "First, add up what is left over."),
        (change_direction, "Each box has 12 pens."),
        (change_direction, "He grew 3 inches over the summer."),
        (change_direction, "We start with 100 cookies."),
        (change_direction, "He spent 3 hours there."),
        (change_direction, "That matches the total given."),
        (change_direction, "He is 5 years old."),
        (change_direction, "The answer to the last step is the final answer."),
        (change_direction, "Once more, even if it is no longer so."),
        (change_direction, "This gives 36 pens, all of them red."),
        (change_direction, "His sister ate as many as his brother."),
        (change_direction, "The children's toys cost $5."),
        (change_negation, "How many pens does Tom have?"),
        (change_negation, "Find what is the cost."),
        (change_negation, "4 cans * 3 tomatoes per can = 12 tomatoes"),
        (change_negation, "The can costs $2, as much as another can does."),
        (change_stance, "What is the price?"),
        (change_word, "They get 5 pens each of them."),
        (change_word, "That leaves so many pens."),
        (change_word, "We do not have to add."),
        (change_word, "Find out who he is, or what it is."),
        (change_word, "A whole number comes in all boxes."),
        (change_word, "Tom lives there since birth."),
        (change_word, "He runs since then, since Monday and since the start."),
        (change_word, "He stops because of rain."),
        (change_word, "He must stop."),
        (change_word, "We must not stop."),
        (change_word, "Tom gets up and comes to school."),
        (change_word, "Now it's been 5 days."),
        (change_word, "Tom needs to stop."),
    ],
)
def test_no_word_is_exchanged_where_it_makes_nonsense(
    change: Callable[[str, Random], str | None], text: str
) -> None:
    assert found(change, text) == {None}


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
