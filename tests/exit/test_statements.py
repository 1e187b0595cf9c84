"""A statement concludes a value, and what a small model says of it is weighed from the prefix alone."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.exit.features import ExitReader
from reason_spec.exit.statements import NOT_RATED, STATE_FEATURES, RatedStatement, Statement, state_features

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
RATED = st.lists(
    st.builds(RatedStatement, st.sampled_from([Fraction(3), Fraction(7), "x"]), st.floats(-12, 12))
)


def concluded(text: str) -> list[Fraction | str]:
    reader = ExitReader(QUESTION)
    reader.read(text)
    return [statement.value for statement in reader.statements]


def test_results_boxes_and_marked_numbers_are_conclusions() -> None:
    assert concluded("She has 3 * 4 = 12 apples.") == [12]
    assert concluded("So 10 apples are left.") == [10]
    assert concluded("\\boxed{x + 1}") == ["x+1"]
    assert concluded("Ana has 3 boxes of 4 apples.") == []
    assert concluded("Is 3 * 4 = 12?") == []


def test_a_sentence_that_repeats_the_value_before_it_is_no_new_statement() -> None:
    assert concluded("3 * 4 = 12. So 12 apples. Then 12 - 2 = 10. So 12 were there.") == [12, 10, 12]


def test_statements_are_those_of_the_last_step() -> None:
    reader = ExitReader(QUESTION)
    reader.read("So 3 * 4 = 12.")
    reader.read("She eats 2 of them.")
    assert reader.statements == []


def test_a_line_has_no_breaks_within_and_is_cut() -> None:
    line = Statement(Fraction(1), "  So\n\nit is " + "very " * 100 + "1.").line
    assert line.startswith("So it is very")
    assert line.count("\n") == 1
    assert len(line) == 301


@given(RATED, st.sampled_from([Fraction(3), Fraction(7), Fraction(9)]))
def test_features_follow_the_statements_of_the_value(rated: list[RatedStatement], value: Fraction) -> None:
    features = dict(zip(STATE_FEATURES, state_features(rated, value), strict=True))
    own = [statement.margin for statement in rated if statement.value == value]
    assert features["state_now"] == (rated[-1].margin if rated else NOT_RATED)
    if not own:
        assert features["state_first"] == features["state_most"] == NOT_RATED
        return
    assert (features["state_first"], features["state_last"]) == (own[0], own[-1])
    assert min(own) - 1e-9 <= features["state_mean"] <= features["state_most"] + 1e-9
    others = [statement.margin for statement in rated if statement.value != value]
    assert features["state_lead"] == features["state_most"] - max(others, default=NOT_RATED)
    behind = len(rated) - 1 - max(i for i, statement in enumerate(rated) if statement.value == value)
    assert features["state_after"] == behind
