"""The replay's clock and counts, and the training on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reason_spec.errors import DataError
from reason_spec.lab.tools_ahead.moments import Moment, Recorded, Scores, moments_of
from reason_spec.lab.tools_ahead.replay import Clock, call_text, replay, replay_all
from reason_spec.lab.tools_ahead.training import scores_of, train
from reason_spec.tools_ahead.calls import Call, Called, Event, Returned, Said
from reason_spec.tools_ahead.features import FEATURE_NAMES
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import Knowledge
from tests.tools_ahead.some_conversations import READ_ONLY, conversations, user

CLOCK = Clock(len, tokens_per_second=100.0, tool_seconds=1.0, user_seconds=10.0, max_age=60.0)
GET = Call.of("get_order", {"order_id": "A1"})
CANCEL = Call.of("cancel_order", {"order_id": "A1"})
NO_ROW = (0.0,) * len(FEATURE_NAMES)


def moment(event: int, stage: int, *calls: Call, chance: float = 0.9) -> Scores:
    keys = tuple(call.key for call in calls)
    return Scores(
        Moment(event, stage, keys, (NO_ROW,) * len(keys), (False,) * len(keys)), [chance] * len(keys)
    )


def conversation(*events: Event) -> Recorded:
    return Recorded("t", "0", (Said("user", "x"), *events))


def test_a_call_from_the_turns_beginning_saves_the_time_of_its_writing() -> None:
    one = conversation(Said("assistant", "let me look"), Called(GET), Returned(GET, "{}"))
    done = replay(one, [moment(1, 0, GET)], 0.5, CLOCK, READ_ONLY)
    writing = (len("let me look") + len(call_text(GET))) / 100
    assert done.uses[0].saved == pytest.approx(writing)
    assert done.seconds == pytest.approx(10 + writing + 1)
    assert (done.precision, done.share) == (1.0, 1.0)
    quick = replay(one, [moment(1, 0, GET)], 0.5, replace(CLOCK, tool_seconds=0.1), READ_ONLY)
    assert quick.saved == pytest.approx(0.1), "no more than the tool takes"


def test_a_call_from_a_name_or_an_argument_on_saves_the_rest() -> None:
    one = conversation(Called(GET), Returned(GET, "{}"))
    for stage in (1, 2):
        done = replay(one, [moment(1, stage, GET)], 0.5, CLOCK, READ_ONLY)
        rest = len(call_text(GET)) - len(call_text(GET, stage - 1))
        assert done.uses[0].saved == pytest.approx(rest / 100)
        assert done.uses[0].stage == stage


def test_unlikely_calls_do_not_run_and_wrong_ones_lower_the_precision() -> None:
    other = Call.of("get_order", {"order_id": "B2"})
    one = conversation(Called(GET), Returned(GET, "{}"))
    assert replay(one, [moment(1, 0, GET, chance=0.4)], 0.5, CLOCK, READ_ONLY).ahead == []
    both = replay(one, [moment(1, 0, GET, other)], 0.5, CLOCK, READ_ONLY)
    assert (both.precision, both.share) == (0.5, 1.0)
    assert [one.is_used for one in both.ahead] == [True, False]


def test_a_change_and_age_make_results_worthless() -> None:
    changed = conversation(Called(CANCEL), Returned(CANCEL, "done"), Called(GET), Returned(GET, "{}"))
    assert replay(changed, [moment(1, 0, GET)], 0.5, CLOCK, READ_ONLY).num_right == 0
    late = conversation(Said("assistant", "?"), Said("user", "y"), Called(GET), Returned(GET, "{}"))
    assert replay(late, [moment(1, 0, GET)], 0.5, CLOCK, READ_ONLY).num_right == 1
    assert replay(late, [moment(1, 0, GET)], 0.5, replace(CLOCK, max_age=5.0), READ_ONLY).num_right == 0


def test_a_result_counts_once_and_a_running_call_is_not_started_again() -> None:
    one = conversation(Called(GET), Returned(GET, "{}"), Called(GET), Returned(GET, "{}"))
    done = replay(one, [moment(1, 0, GET), moment(1, 1, GET)], 0.5, CLOCK, READ_ONLY)
    assert (len(done.ahead), done.num_right, len(done.uses)) == (1, 1, 2)


def test_a_trained_model_predicts_orders_of_unknown_users(shop_model: CallModel) -> None:
    known = Knowledge.of([one.events for one in conversations(0, 20)], READ_ONLY)
    tests = conversations(100, 110)
    scored = [(one, scores_of(shop_model, moments_of(known, one.events))) for one in tests]
    done = replay_all(scored, shop_model.threshold, CLOCK, READ_ONLY)
    assert len(done.uses) == sum(1 + len(user(number)["orders"]) for number in range(100, 110))
    assert done.precision is not None
    assert done.precision > 0.8
    assert done.share is not None
    assert done.share > 0.8


def test_too_little_to_learn_from_is_refused() -> None:
    with pytest.raises(DataError, match="Give more conversations"):
        train(conversations(0, 1), READ_ONLY, CLOCK, precision=0.8, with_trials=False)
