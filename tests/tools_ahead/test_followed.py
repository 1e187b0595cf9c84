"""Conversations of many requests are followed: what they teach stays with their tenant and their salt."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.tools_ahead import followed
from reason_spec.tools_ahead.calls import Call, Event
from reason_spec.tools_ahead.followed import (
    IDLE_SECONDS,
    MAX_RUNNING,
    Followed,
    FollowedConversations,
    Origin,
)
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import CallPredictor, Prediction
from tests.tools_ahead.some_conversations import READ_ONLY, messages_of, user

ANN = Origin("ann")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def conversations(shop_model: CallModel, clock: Clock) -> FollowedConversations:
    return FollowedConversations(
        shop_model, threshold=shop_model.threshold, max_conversations=20, clock=clock
    )


def orders_of(number: int) -> set[Call]:
    return {Call.of("get_order", {"order_id": one}) for one in user(number)["orders"]}


def predicted_orders(
    conversations: FollowedConversations, number: int, origin: Origin, num_messages: int = 4
) -> set[Call]:
    return {one.call for one in ask(conversations, messages_of(number)[:num_messages], origin)[1]}


def ask(
    conversations: FollowedConversations, messages: list[dict[str, Any]], origin: Origin = ANN
) -> tuple[Followed, list[Prediction]]:
    found = conversations.predict(origin, messages, READ_ONLY)
    assert found is not None
    return found


def teach(conversations: FollowedConversations, origin: Origin, last: int = 12) -> None:
    for number in range(last):
        named = origin._replace(session=f"past {number}")
        for end in range(2, len(messages_of(number))):
            if messages_of(number)[end]["role"] == "assistant":
                ask(conversations, messages_of(number)[:end], named)
        conversations.end(named.tenant, named.session)


def test_ended_sessions_teach_their_tenant_and_salt_alone(conversations: FollowedConversations) -> None:
    teach(conversations, ANN)
    assert predicted_orders(conversations, 70, ANN) == orders_of(70)
    assert predicted_orders(conversations, 70, Origin("bob")) == set()
    assert predicted_orders(conversations, 70, Origin("ann", "salt")) == set()
    assert conversations.num_running == 3


def test_idle_conversations_teach_once(conversations: FollowedConversations, clock: Clock) -> None:
    for number in range(12):
        ask(conversations, messages_of(number)[:-1])
    assert not conversations.learn_idle()
    assert predicted_orders(conversations, 70, ANN) == set()
    clock.now += IDLE_SECONDS
    assert [conversations.learn_idle() for _ in range(14)] == [True] * 13 + [False]
    assert predicted_orders(conversations, 71, ANN) == orders_of(71)


def test_a_conversation_is_recognized_by_its_messages(conversations: FollowedConversations) -> None:
    messages = messages_of(70)
    first, _ = ask(conversations, messages[:2])
    other, _ = ask(conversations, messages_of(71)[:2])
    again, _ = ask(conversations, messages[:4])
    assert first is again
    assert first is not other
    changed, _ = ask(conversations, [*messages_of(72)[:2], *messages[2:4]])
    assert changed is not first
    named, _ = ask(conversations, messages[:4], ANN._replace(session="named"))
    assert named is not first


def test_only_what_the_request_marks_is_predicted(conversations: FollowedConversations) -> None:
    teach(conversations, ANN)
    found = conversations.predict(ANN, messages_of(70)[:4], lambda call: call.name == "get_user")
    assert found is not None
    assert found.likely == []


def test_a_call_is_right_once_and_not_after_a_change(conversations: FollowedConversations) -> None:
    teach(conversations, ANN)
    followed, likely = ask(conversations, messages_of(70)[:4])
    calls = [one.call for one in likely]
    assert set(followed.await_calls(calls)) == orders_of(70)
    assert followed.await_calls(calls) == [], "sent twice, awaited once"
    assert followed.answered(calls[:1]) == calls[:1]
    assert followed.answered(calls[:1]) == []
    cancels = Call.of("cancel_order", {"order_id": "A1"})
    assert followed.answered([cancels, *calls]) == []


def test_running_conversations_are_bounded(
    conversations: FollowedConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MAX_RUNNING + 5):
        ask(conversations, messages_of(number)[:2])
    assert conversations.num_running == MAX_RUNNING
    # A sixteenth of the characters, in the same proportion.
    most = followed.MAX_CHARACTERS // 16
    monkeypatch.setattr(followed, "MAX_CHARACTERS", most)
    monkeypatch.setattr(followed, "_MAX_RUNNING_CHARACTERS", 16 * most)
    long = [{"role": "user", "content": "x" * (most + 1)}]
    assert conversations.predict(ANN, long, READ_ONLY) is None
    for number in range(40):
        ask(conversations, [{"role": "user", "content": f"{number} " + "x " * (most // 2 - 9)}])
    assert conversations.num_running <= 17


def test_a_conversation_that_cannot_be_read_is_not_taken_for_another(
    conversations: FollowedConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CallPredictor, event: Event) -> None:
        raise ArithmeticError

    monkeypatch.setattr(CallPredictor, "add", fail)
    with pytest.raises(ArithmeticError):
        ask(conversations, messages_of(70)[:2])
    assert conversations.num_running == 0


def test_what_makes_room_for_other_conversations_is_learned(conversations: FollowedConversations) -> None:
    for number in range(MAX_RUNNING + 5):
        ask(conversations, messages_of(number)[:-1])
    assert [conversations.learn_idle() for _ in range(6)] == [True] * 5 + [False]


def test_an_idle_conversation_that_goes_on_is_learned_whole_and_once(
    conversations: FollowedConversations, clock: Clock
) -> None:
    named = ANN._replace(session="slow")
    ask(conversations, messages_of(3)[:4], named)
    clock.now += IDLE_SECONDS
    assert conversations.learn_idle()
    followed, _ = ask(conversations, messages_of(3)[:-1], named)
    conversations.end("ann", "slow")
    assert [len(past.calls) for past in followed.knowledge.memory.past.values()] == [
        1 + len(user(3)["orders"])
    ]


def test_one_past_conversation_with_the_same_values_is_enough_to_predict(
    conversations: FollowedConversations,
) -> None:
    named = ANN._replace(session="again")
    ask(conversations, messages_of(3)[:-1], named)
    conversations.end("ann", "again")
    followed, _ = ask(conversations, messages_of(3)[:4], named)
    assert {one.call for one in followed.predictor.predict()} >= orders_of(3)
