"""Moments of recorded conversations: no leak between conversations, tasks and trials."""

from __future__ import annotations

from reason_spec.lab.tools_ahead.moments import (
    AGREEMENT,
    Recorded,
    held_out_moments,
    invented_trial,
    moments_of,
    recorded,
)
from reason_spec.suffix.traces import Conversation, TraceMessage
from reason_spec.tools_ahead.calls import Called, Said
from reason_spec.tools_ahead.predictor import Knowledge
from tests.tools_ahead.some_conversations import READ_ONLY, conversations, events, messages_of


def test_right_is_what_comes_before_the_next_change() -> None:
    known = Knowledge.of([one.events for one in conversations(0, 12)], READ_ONLY)
    whole = events(6, cancels=True)
    for moment in moments_of(known, whole):
        coming = []
        for event in whole[moment.event :]:
            if isinstance(event, Called):
                if not READ_ONLY(event.call):
                    break
                coming.append(event.call.key)
        wanted = set(coming[:1] if moment.stage else coming)
        assert [key in wanted for key in moment.keys] == list(moment.is_right)
        if moment.stage:
            assert isinstance(whole[moment.event], Called)


def test_held_out_moments_are_those_by_the_knowledge_of_the_other_folds() -> None:
    pool = conversations(0, 9)
    found = held_out_moments(pool, lambda one: int(one.task) % 3, READ_ONLY)
    rest = Knowledge.of([one.events for one in pool if int(one.task) % 3 != 1], READ_ONLY)
    assert found[4] == moments_of(rest, pool[4].events)
    assert found[4] != moments_of(Knowledge.of([one.events for one in pool], READ_ONLY), pool[4].events)


def test_an_invented_trial_keeps_about_the_stated_share_and_takes_the_rest_from_others() -> None:
    pool = conversations(0, 40)
    others = Knowledge.of([one.events for one in pool[20:]], READ_ONLY)
    elsewhere = {call.key for past in others.memory.past.values() for call in past.calls}
    kept = total = 0
    for number, one in enumerate(pool[:20]):
        own = [e.call.key for e in one.events if isinstance(e, Called) and READ_ONLY(e.call)]
        calls = [call.key for call in invented_trial(one, others, number).calls]
        assert len(calls) == len(own)
        assert set(calls) <= {*own, *elsewhere}
        kept += sum(key in own for key in calls)
        total += len(own)
    assert abs(kept / total - AGREEMENT) < 0.15


def test_conversations_without_names_are_grouped_by_their_first_text() -> None:
    def conversation(number: int, **names: str) -> Conversation:
        messages = tuple(map(TraceMessage.model_validate, messages_of(number)))
        return Conversation(1, messages, **names)

    found = recorded(
        [conversation(1), conversation(2), conversation(1), conversation(3, task="t", trial="9")]
    )
    assert found[0].task == found[2].task != found[1].task
    assert [one.trial for one in found] == ["0", "0", "1", "9"]
    assert found[3].task == "t"


def test_calls_only_has_no_texts_and_the_same_task() -> None:
    one = conversations(3, 4)[0]
    alone = one.calls_only
    assert (alone.task, alone.trial) == (one.task, one.trial)
    assert alone.events == tuple(event for event in one.events if not isinstance(event, Said))
    assert isinstance(alone, Recorded)
