"""A policy sees the prefix alone, and its file is checked whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.errors import DataError
from reason_spec.exit.policy import (
    NEARLY_SURE,
    NO_OTHER,
    ExitMonitor,
    ExitPolicy,
    Trees,
    load_policy,
    sigmoid,
    with_asked,
)
from reason_spec.routers.learned import Boosting, Tree
from reason_spec.segment import split_steps

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
THINKING = (
    "Let me see. Ana has 3 boxes, and each of the boxes holds 4 apples.\n\n"
    "So she has 3 * 4 = 12 apples.\n\n"
    "She eats 2 of them. 12 - 2 = 10. So 10 apples are left.\n\n"
    "Wait, let me check that again. 3 boxes of 4 apples: 3 * 4 = 12. Then 12 - 2 = 10. Correct.\n\n"
    "Therefore, the answer is 10 apples.\n\n"
    "**Final Answer**\n\\boxed{10}\n"
)
POLICY = load_policy()


def first_stop(text: str, policy: ExitPolicy = POLICY) -> tuple[int, str] | None:
    monitor = ExitMonitor(policy, QUESTION)
    for step, content in enumerate(split_steps(text)):
        if (found := monitor.read(content)) is not None:
            return step, found.answer
    return None


def test_the_shipped_policy_stops_at_the_answer_and_not_before() -> None:
    stop = first_stop(THINKING)
    assert stop is not None
    assert stop[1] == "10"
    assert stop[0] >= 2
    assert first_stop("".join(split_steps(THINKING)[:2])) is None


def test_a_threshold_of_one_never_stops() -> None:
    assert first_stop(THINKING, POLICY.model_copy(update={"threshold": 1.0})) is None


def test_the_second_model_decides_where_the_first_is_nearly_sure_and_nowhere_else() -> None:
    doubts = Boosting(base=-2.0, rate=1.0, trees=())
    first, both = (
        ExitMonitor(ExitPolicy.model_validate({**POLICY.model_dump(), "second": second}), QUESTION)
        for second in (None, doubts)
    )
    sure = []
    for step in split_steps(THINKING):
        alone, decided = first.weigh(step), both.weigh(step)
        assert (alone is None) == (decided is None)
        if alone is None or decided is None:
            continue
        assert alone.answer == decided.answer
        sure.append(alone.chance >= NEARLY_SURE)
        assert decided.chance == (sigmoid(-2.0) if sure[-1] else alone.chance)
    assert {True, False} == set(sure)


@settings(max_examples=40)
@given(st.text(max_size=200), st.sampled_from([0.3, 0.6, 0.9]))
def test_the_text_behind_a_stop_does_not_change_it(rest: str, threshold: float) -> None:
    policy = POLICY.model_copy(update={"threshold": threshold})
    steps = split_steps(THINKING)
    stop = first_stop(THINKING, policy)
    assert stop is not None
    kept = "".join(steps[: stop[0] + 1])
    assert first_stop(kept + rest, policy) == stop


@given(st.integers(0, 6), st.text(max_size=100))
def test_chances_of_a_prefix_do_not_depend_on_the_rest(num_steps: int, rest: str) -> None:
    steps = split_steps(THINKING)[:num_steps]
    found = []
    for more in ((), (rest,)):
        monitor = ExitMonitor(POLICY.model_copy(update={"threshold": 0.0}), QUESTION)
        found.append([monitor.read(step) for step in (*steps, *more)][:num_steps])
    assert found[0] == found[1]


def tree(**changes: Any) -> Tree:
    whole = {"feature": (1, 0, 0), "threshold": (0.5, 0, 0), "left": (1, -1, -1), "right": (2, -1, -1)}
    return Tree(**{**whole, "value": (0, -1, 1), **changes})


@given(st.lists(st.tuples(*[st.floats(-2, 2, width=32)] * 3), max_size=8))
def test_trees_side_by_side_give_what_each_gives(rows: list[tuple[float, ...]]) -> None:
    deep = tree(
        feature=(0, 2, 0, 0, 0), threshold=(0, 1, 0, 0, 0), left=(1, 3, -1, -1, -1), right=(2, 4, -1, -1, -1),
        value=(0, 0, 0.5, -0.25, 2),
    )  # fmt: skip
    boosting = Boosting(base=0.1, rate=0.5, trees=(tree(), deep))
    expected = [boosting.margin(row) for row in rows]
    assert Trees(boosting).margins(np.array(rows).reshape(len(rows), 3)).tolist() == pytest.approx(expected)


def test_leads_are_over_the_best_other_candidate_of_the_step() -> None:
    rows = with_asked(np.zeros((4, 1)), np.array([1.0, 3.0, 2.0, 5.0]), 3, 1)
    assert rows[:, 2].tolist() == [-2.0, 1.0, -1.0, 5.0 - NO_OTHER]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(POLICY.to_json())
    assert load_policy(path) == POLICY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 2}, "threshold"),
        ({"features": ["x"]}, "other features"),
        ({"second": Boosting(base=0, rate=1, trees=(tree(feature=(999, 0, 0)),)).model_dump()}, "sizes"),
        ({"more": 1}, "more"),
    ],
)
def test_damaged_files_are_refused_by_field(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({**json.loads(POLICY.to_json()), **changes}))
    with pytest.raises(DataError, match=message):
        load_policy(path)
    with pytest.raises(DataError, match="no exit policy can be read"):
        load_policy(tmp_path / "missing.json")
