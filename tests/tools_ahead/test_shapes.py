"""Shapes of calls: what explains a call, and what a shape proposes elsewhere."""

from __future__ import annotations

from reason_spec.tools_ahead.calls import Call, Called, Event, Returned, Said
from reason_spec.tools_ahead.history import History
from reason_spec.tools_ahead.shapes import Binding, Shape, ShapeCounts, proposals_of, shapes_of
from reason_spec.tools_ahead.values import Aliases
from tests.tools_ahead.some_conversations import events, user


def history_of(*events: Event) -> History:
    history = History(Aliases())
    history.extend(events)
    return history


def test_a_call_is_explained_by_the_list_that_its_argument_stands_in() -> None:
    history = history_of(*events(7)[:4])
    shapes = shapes_of(Call.of("get_order", {"order_id": user(7)["orders"][1]}), history)
    assert Shape("get_order", (Binding("order_id", "result get_user orders[]"),)) in shapes


def test_a_shape_proposes_each_item_of_another_conversations_list() -> None:
    shape = Shape("get_order", (Binding("order_id", "result get_user orders[]"),))
    history = history_of(*events(8)[:4])
    proposed = proposals_of(shape, history)
    assert [one.call.arguments["order_id"] for one in proposed] == user(8)["orders"]
    assert [one.place for one in proposed] == list(range(len(proposed)))
    assert proposals_of(shape, history) is proposed, "nothing has changed: the same list"
    assert proposals_of(shape, history_of(*events(8)[:2])) == []


def test_arguments_of_one_list_item_stay_together() -> None:
    flights = '{"flights": [{"no": "A1", "day": "Mon"}, {"no": "B2", "day": "Tue"}]}'
    shape = Shape(
        "look", (Binding("day", "result trip flights[].day"), Binding("no", "result trip flights[].no"))
    )
    history = history_of(Said("user", "x"), Returned(Call.of("trip", {}), flights))
    pairs = [(p.call.arguments["no"], p.call.arguments["day"]) for p in proposals_of(shape, history)]
    assert pairs == [("A1", "Mon"), ("B2", "Tue")]


def test_constants_and_tools_without_arguments_have_shapes() -> None:
    history = history_of(Said("user", "x"))
    assert Shape("list_all", ()) in shapes_of(Call.of("list_all", {}), history)
    (shape,) = shapes_of(Call.of("list", {"kind": "all"}), history)
    assert shape.bindings == (Binding("kind", '="all"'),)
    assert [p.call for p in proposals_of(shape, history)] == [Call.of("list", {"kind": "all"})]


def test_a_shape_of_one_conversation_alone_is_not_used() -> None:
    counts, shape = ShapeCounts(), Shape("a", (Binding("x", "user a_9"),))
    counts.learn([shape, shape])
    assert counts.best("a") == []
    counts.learn([shape])
    assert counts.best("a") == [shape]


def test_a_call_made_itself_does_not_explain_itself() -> None:
    history = history_of(Said("user", "x"))
    call = Call.of("get", {"key": "k_1"})
    before = shapes_of(call, history)
    history.add(Called(call))
    assert Shape("get", (Binding("key", "argument get key"),)) not in before
