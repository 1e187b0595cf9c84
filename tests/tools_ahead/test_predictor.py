"""The predictor sees a prefix, learns from other conversations, and predicts what they did."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.lab.tools_ahead.moments import moments_of
from reason_spec.tools_ahead.calls import Call, Called, Returned
from reason_spec.tools_ahead.features import FEATURE_NAMES, Streamed
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import CallPredictor, Knowledge
from tests.tools_ahead.some_conversations import READ_ONLY, conversations, events, user


def learned(first: int = 0, last: int = 20) -> Knowledge:
    return Knowledge.of([one.events for one in conversations(first, last)], READ_ONLY)


def after(number: int, num_events: int, model: CallModel, **options: bool) -> CallPredictor:
    predictor = CallPredictor(learned(), model, **options)
    for event in events(number)[:num_events]:
        predictor.add(event)
    return predictor


def test_the_user_and_then_each_order_is_predicted_for_an_unknown_user(shop_model: CallModel) -> None:
    first = after(90, 2, shop_model).predict()
    assert first[0].call == Call.of("get_user", {"user_id": "nora_90"})
    assert first[0].chance > 0.8
    likely = [p.call for p in after(90, 4, shop_model).predict() if p.chance >= shop_model.threshold]
    assert set(likely) == {Call.of("get_order", {"order_id": one}) for one in user(90)["orders"]}


def test_a_name_that_is_being_written_leaves_only_calls_to_that_tool(shop_model: CallModel) -> None:
    predictor = after(90, 4, shop_model)
    assert {p.call.name for p in predictor.predict(Streamed("get_order"))} == {"get_order"}
    one = user(90)["orders"][-1]
    written = predictor.predict(Streamed("get_order", {"order_id": f'"{one}"'}))
    assert [p.call.arguments for p in written] == [{"order_id": one}]
    assert predictor.predict(Streamed("unknown_tool")) == []


def test_no_call_that_may_change_something_is_proposed(shop_model: CallModel) -> None:
    known = Knowledge.of([one.events for one in conversations(0, 30)], lambda _: True)
    assert "cancel_order" in known.shapes.conversations, "it has been learned here, so it could be proposed"
    known.is_read_only = READ_ONLY
    predictor = CallPredictor(known, shop_model)
    for event in events(90):
        predictor.add(event)
        assert "cancel_order" not in {p.call.name for p in predictor.predict()}


def test_what_comes_later_changes_no_prediction() -> None:
    known = learned()
    whole = events(91, cancels=True)
    for cut in range(3, len(whole) + 1):
        full = [m for m in moments_of(known, whole) if m.event < cut]
        part = [m for m in moments_of(known, whole[:cut]) if m.event < cut]
        assert [(m.event, m.stage, m.keys, m.rows) for m in part] == [
            (m.event, m.stage, m.keys, m.rows) for m in full
        ]


def test_a_row_has_all_features() -> None:
    rows = [row for moment in moments_of(learned(), events(92)) for row in moment.rows]
    assert rows
    assert {len(row) for row in rows} == {len(FEATURE_NAMES)}


def test_one_conversation_after_another_teaches_as_all_at_once_do() -> None:
    together, one_by_one = learned(0, 12), Knowledge(READ_ONLY)
    for one in conversations(0, 12):
        one_by_one.learn(one.events)
    assert one_by_one.shapes.conversations == together.shapes.conversations
    assert one_by_one.counts.next_by_trigger == together.counts.next_by_trigger


@given(st.lists(st.integers(0, 11), min_size=1, unique=True))
def test_what_is_forgotten_leaves_no_trace(forgotten: list[int]) -> None:
    known = learned(12, 20)
    lessons = [known.learn(one.events) for one in conversations(0, 12)]
    for number in forgotten:
        known.forget(lessons[number])
    rest = learned(12, 20)
    for number, one in enumerate(conversations(0, 12)):
        if number not in forgotten:
            rest.learn(one.events)
    assert known.shapes.conversations == rest.shapes.conversations
    # How often a shape was tried depends on what was known when its conversation was learned.
    for name in ("next_by_trigger", "words", "texts"):
        assert getattr(known.counts, name) == getattr(rest.counts, name)
    assert list(known.memory.past.values()) == list(rest.memory.past.values())
    assert vars(known.aliases) == vars(rest.aliases)


def test_all_that_was_learned_can_be_forgotten() -> None:
    known, before = learned(), learned()
    for lesson in [known.learn(one.events) for one in conversations(20, 26)]:
        known.forget(lesson)
    assert known.counts == before.counts
    assert known.shapes.conversations == before.shapes.conversations
    assert list(known.memory.past.values()) == list(before.memory.past.values())
    history = CallPredictor(known).history
    history.extend(events(5)[:2])
    assert known.memory.recall(history) == before.memory.recall(history)


def test_a_copy_learns_on_its_own() -> None:
    known, before = learned(), learned()
    copied = known.copy()
    copied.learn(events(30))
    assert known.counts == before.counts != copied.counts
    assert known.shapes.conversations == before.shapes.conversations != copied.shapes.conversations
    assert len(copied.memory.past) == len(known.memory.past) + 1


def test_a_loop_of_one_conversation_is_learned_while_it_goes_on(shop_model: CallModel) -> None:
    predictor = CallPredictor(Knowledge(READ_ONLY), shop_model, learns=True)
    orders = [f"A{number}" for number in range(20_000, 20_006)]
    listing = Call.of("list", {})
    predictor.add(Called(listing))
    predictor.add(Returned(listing, str(orders).replace("'", '"')))
    predicted = []
    for order in orders:
        call = Call.of("get_order", {"order_id": order})
        predicted.append(call in [p.call for p in predictor.predict()])
        predictor.add(Called(call))
        predictor.add(Returned(call, "{}"))
    assert predicted == [False, False, True, True, True, True]


def test_calls_of_a_like_conversation_are_recalled() -> None:
    known = learned()
    predictor = CallPredictor(known)
    for event in events(5)[:2]:
        predictor.add(event)
    recalled = {one.call: one for one in known.memory.recall(predictor.history)}
    assert recalled[Call.of("get_user", {"user_id": "nora_5"})].is_next
    assert set(recalled) >= {Call.of("get_order", {"order_id": one}) for one in user(5)["orders"]}
