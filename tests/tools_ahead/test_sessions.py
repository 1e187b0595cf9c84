"""Tools run ahead in process: the results are those of plain tools, in less time and never across tenants."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from reason_spec.errors import SettingsError
from reason_spec.tools_ahead.held import AheadLimits
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.sessions import SpeculativeTools, ToolSession
from tests.server.processes import until
from tests.tools_ahead.some_conversations import call, events, messages_of, order, result, user

PAST = [events(number) for number in range(20)]


class Shop:
    """Tools that count what they served, and may fail or wait."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.fails = False
        self.opened = threading.Event()
        self.opened.set()

    def get_user(self, user_id: str) -> dict[str, Any]:
        self.served.append(user_id)
        return user(int(user_id.rpartition("_")[2]))

    def get_order(self, order_id: str) -> dict[str, Any]:
        self.served.append(order_id)
        assert self.opened.wait(20)
        if self.fails:
            raise OSError("the shop is closed")
        return order(order_id)

    def cancel_order(self, order_id: str) -> str:
        self.served.append(f"cancel {order_id}")
        return "done"

    @property
    def tools(self) -> dict[str, Any]:
        return {"get_user": self.get_user, "get_order": self.get_order, "cancel_order": self.cancel_order}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def tools(shop: Shop, shop_model: CallModel) -> Iterator[SpeculativeTools]:
    with SpeculativeTools(
        shop.tools, read_only=["get_user", "get_order"], past=PAST, model=shop_model
    ) as made:
        yield made


def until_served(shop: Shop, num_calls: int) -> None:
    deadline = time.monotonic() + 20
    while len(shop.served) < num_calls:
        assert time.monotonic() < deadline, shop.served
        time.sleep(0.005)


def followed(session: ToolSession, number: int, num_messages: int) -> list[dict[str, Any]]:
    messages = messages_of(number)[:num_messages]
    session.follow(messages)
    session.settle()
    return messages


def test_orders_are_read_while_the_model_writes(tools: SpeculativeTools, shop: Shop) -> None:
    orders = user(70)["orders"]
    with tools.session() as session:
        followed(session, 70, 4)
        until_served(shop, len(orders))
        assert [session.call("get_order", {"order_id": one}) for one in orders] == [
            order(one) for one in orders
        ]
        assert sorted(shop.served) == sorted(orders), "each was read once"
        assert session.report.num_used == len(orders)


def test_an_agent_sees_the_same_results_as_without(tools: SpeculativeTools, shop: Shop) -> None:
    with tools.session() as session:
        for number in (70, 71, 72):
            messages = messages_of(number, cancels=True)
            for place, message in enumerate(messages):
                for made in message.get("tool_calls", ()):
                    session.follow(messages[:place])
                    function = made["function"]
                    arguments = json.loads(function["arguments"])
                    assert result(session.call(function["name"], arguments)) == messages[place + 1]
    assert session.report.num_used > 0


def test_a_change_drops_results_and_other_sessions_have_none(tools: SpeculativeTools, shop: Shop) -> None:
    orders = user(70)["orders"]
    with tools.session("ann") as ann, tools.session("bob") as bob:
        followed(ann, 70, 4)
        until_served(shop, len(orders))
        bob.call("get_order", {"order_id": orders[0]})
        assert shop.served.count(orders[0]) == 2, "another tenant's result is not used"
        ann.call("cancel_order", {"order_id": orders[1]})
        ann.call("get_order", {"order_id": orders[0]})
        assert shop.served.count(orders[0]) == 3
        assert ann.report.dropped == {"changed": len(orders)}
        assert bob.report.num_started == 0


def test_a_failure_ahead_is_dropped_and_the_real_call_made(tools: SpeculativeTools, shop: Shop) -> None:
    orders = user(70)["orders"]
    shop.fails = True
    with tools.session() as session:
        followed(session, 70, 4)
        until_served(shop, len(orders))
        with pytest.raises(OSError, match="closed"):
            session.call("get_order", {"order_id": orders[0]})
        shop.fails = False
        assert session.call("get_order", {"order_id": orders[0]}) == order(orders[0])
        assert session.report.num_used == 0


def test_a_running_call_is_waited_for(tools: SpeculativeTools, shop: Shop) -> None:
    orders = user(70)["orders"]
    shop.opened.clear()
    with tools.session() as session:
        followed(session, 70, 4)
        until_served(shop, len(orders))
        threading.Timer(0.05, shop.opened.set).start()
        assert session.call("get_order", {"order_id": orders[0]}) == order(orders[0])
        assert shop.served.count(orders[0]) == 1


def test_tools_that_are_coroutines_run_in_the_callers_loop(shop_model: CallModel) -> None:
    loops, served = set(), []

    async def get_order(order_id: str) -> dict[str, Any]:
        loops.add(asyncio.get_running_loop())
        served.append(order_id)
        await asyncio.sleep(0)
        return order(order_id)

    async def agent() -> None:
        orders = user(70)["orders"]
        with SpeculativeTools(
            {"get_order": get_order}, read_only=["get_order"], past=PAST, model=shop_model
        ) as made:
            session = made.session()
            session.follow(messages_of(70)[:4])
            async with asyncio.timeout(20):
                while len(served) < len(orders):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            for one in orders:
                assert await session.acall("get_order", {"order_id": one}) == order(one)
            assert len(served) == len(orders)
            assert loops == {asyncio.get_running_loop()}
            assert session.close().num_used == len(orders)

    asyncio.run(agent())


def test_a_predicted_call_with_wrong_arguments_fails_alone(shop_model: CallModel) -> None:
    orders = user(70)["orders"]

    async def get_order(identity: str) -> dict[str, Any]:
        return order(identity)

    async def agent() -> None:
        with (
            SpeculativeTools(
                {"get_order": get_order}, read_only=["get_order"], past=PAST, model=shop_model
            ) as made,
            made.session() as session,
        ):
            messages = followed(session, 70, 4)
            async with asyncio.timeout(20):
                while session.report.dropped != {"failed": len(orders)}:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            session.try_follow(lambda: [*messages, {"role": "user", "content": "And now?"}])
            session.stream("get_order", "{")
            assert await session.acall("get_order", {"identity": orders[0]}) == order(orders[0])

    asyncio.run(agent())


def test_calls_for_a_loop_that_was_closed_do_not_start(shop_model: CallModel) -> None:
    async def get_order(order_id: str) -> dict[str, Any]:
        return order(order_id)

    with SpeculativeTools(
        {"get_order": get_order}, read_only=["get_order"], past=PAST, model=shop_model
    ) as made:
        session = made.session()
        busy = threading.Event()

        async def agent() -> None:
            made.predicting.submit(busy.wait)
            session.follow(messages_of(70)[:4])

        asyncio.run(agent())
        busy.set()
        session.settle()
        assert session.close().num_started == 0


def test_a_name_in_a_stream_starts_the_call(tools: SpeculativeTools, shop: Shop) -> None:
    one = user(70)["orders"][1]
    with tools.session() as session:
        session.follow(messages_of(70)[:3])
        session.settle()
        assert shop.served == []
        followed(session, 70, 4)
        for size in range(1, 30):
            session.stream("get_order", f'{{"order_id": "{one}", '[:size])
        session.settle()
        until(lambda: one in shop.served)


def test_a_past_that_changes_is_read_anew(tools: SpeculativeTools, shop: Shop) -> None:
    with tools.session() as session:
        followed(session, 70, 4)
        until_served(shop, len(user(70)["orders"]))
        followed(session, 71, 4)
        until_served(shop, len(user(70)["orders"]) + len(user(71)["orders"]))
        assert set(shop.served) == {*user(70)["orders"], *user(71)["orders"]}


def test_a_tenants_sessions_teach_that_tenant_alone(shop: Shop, shop_model: CallModel) -> None:
    with SpeculativeTools(shop.tools, read_only=["get_user", "get_order"], model=shop_model) as made:
        taught(made, "ann", range(12))
        with made.session("bob") as bob, made.session("ann") as ann:
            followed(bob, 70, 4)
            assert bob.report.num_started == 0
            followed(ann, 70, 4)
            assert ann.report.num_started == len(user(70)["orders"])


def test_a_session_that_is_closed_without_learning_teaches_nothing(shop: Shop, shop_model: CallModel) -> None:
    with SpeculativeTools(shop.tools, read_only=["get_user", "get_order"], model=shop_model) as made:
        for number in range(12):
            with made.session("ann") as session:
                session.follow(messages_of(number))
                session.close(learn=False)
        with made.session("ann") as ann:
            followed(ann, 70, 4)
            assert ann.report.num_started == 0


def test_pictures_in_a_conversation_are_left_out_of_the_prediction(shop: Shop, shop_model: CallModel) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    system, asked, *rest = messages_of(70)[:4]
    shown = [system, {**asked, "content": [picture, {"type": "text", "text": asked["content"]}, picture]}]
    with SpeculativeTools(shop.tools, read_only=["get_user", "get_order"], model=shop_model) as made:
        taught(made, "ann", range(12))
        with made.session("ann") as session:
            session.follow([*shown, *rest])
            session.settle()
            assert session.report.num_started == len(user(70)["orders"])
            session.follow([*shown, *rest, {"role": "user", "content": [picture]}])
            session.settle()
            assert sum(session.report.dropped.values()) == 0


def test_a_conversation_that_cannot_be_read_is_no_error_in_a_framework_and_drops_results(
    shop: Shop, shop_model: CallModel
) -> None:
    unknown = {"role": "narrator", "content": "Meanwhile"}

    def refuse() -> list[dict[str, Any]]:
        raise LookupError

    with SpeculativeTools(shop.tools, read_only=["get_user", "get_order"], model=shop_model) as made:
        taught(made, "ann", range(12))
        no_mapping: Any = "Meanwhile"
        cases: list[tuple[Callable[[], list[dict[str, Any]]], tuple[type[Exception], ...]]] = [
            (lambda: [*messages_of(70)[:4], unknown], ()),
            (lambda: [*messages_of(70)[:4], no_mapping], ()),
            (refuse, (LookupError,)),
        ]
        for read, errors in cases:
            with made.session("ann") as session:
                followed(session, 70, 4)
                session.try_follow(read, *errors)
                assert session.report.num_started == len(user(70)["orders"])
                assert sum(session.report.dropped.values()) == session.report.num_started
        with made.session("ann") as session, pytest.raises(LookupError):
            session.try_follow(refuse)


def settled(made: SpeculativeTools) -> None:
    """Wait until all is learned."""
    made.predicting.submit(lambda: None).result()


def taught(made: SpeculativeTools, tenant: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        with made.session(tenant) as session:
            session.follow(messages_of(number))
    settled(made)


def test_an_expected_call_runs_from_its_measured_chance_on(shop: Shop, shop_model: CallModel) -> None:
    def num_started(made: SpeculativeTools, asked: str, expected: str) -> int:
        with made.session() as session:
            session.follow([{"role": "user", "content": "?"}])
            session.expect("cancel_order", {"order_id": expected})
            session.expect("get_order", {"order_id": expected})
            session.expect("get_order", {"order_id": expected})
            settled(made)
            session.call("get_order", {"order_id": asked})
            # It comes too late, and is not counted.
            session.expect("get_order", {"order_id": asked})
            settled(made)
        return session.report.num_started

    limits = AheadLimits(threshold=0.6)
    names = ["get_user", "get_order"]
    with SpeculativeTools(shop.tools, read_only=names, model=shop_model, limits=limits) as made:
        # By Laplace's rule of succession: 1/2, 2/3, 3/4, 3/5, 3/6.
        turns = [("A10001", "A10001"), ("A10001", "A10001"), ("A10001", "A2"), ("A10001", "A2")]
        assert [num_started(made, *calls) for calls in turns] == [0, 1, 1, 1]
        assert num_started(made, "A10001", "A10002") == 0
    assert not [one for one in shop.served if one.startswith("cancel")]


def test_an_open_session_learns_from_one_that_ends(shop: Shop, shop_model: CallModel) -> None:
    with SpeculativeTools(shop.tools, read_only=["get_user", "get_order"], model=shop_model) as made:
        taught(made, "ann", range(2))
        with made.session("ann") as ann:
            taught(made, "ann", range(2, 12))
            followed(ann, 70, 4)
            assert ann.report.num_started == len(user(70)["orders"])


def test_a_change_made_elsewhere_drops_results_too(tools: SpeculativeTools, shop: Shop) -> None:
    orders = user(70)["orders"]
    with tools.session() as session:
        messages = followed(session, 70, 4)
        until_served(shop, len(orders))
        changed = [*messages, call("cancel_order", order_id=orders[0]), result("done")]
        session.follow(changed)
        session.settle()
        assert session.report.dropped == {"changed": len(orders)}
        with session.writing():
            assert session.call("get_order", {"order_id": orders[0]}) == order(orders[0])
        assert session.report.num_used == 0


def test_limits_hold_in_a_session(shop: Shop, shop_model: CallModel) -> None:
    limits = AheadLimits(max_calls=1)
    tools = {"get_user": shop.get_user, "get_order": shop.get_order}
    with SpeculativeTools(tools, read_only=list(tools), past=PAST, model=shop_model, limits=limits) as made:
        session = made.session()
        followed(session, 70, 4)
        assert session.close().num_started == 1


@pytest.mark.parametrize(
    ("first", "second", "is_shared"), [("ann", "ann", True), ("ann", "bob", False), (None, None, False)]
)
def test_sessions_of_a_tenant_share_its_limits(
    first: str | None, second: str | None, is_shared: bool, shop: Shop, shop_model: CallModel
) -> None:
    num_orders = len(user(70)["orders"])
    limits = AheadLimits(max_calls=num_orders)
    names = ["get_user", "get_order"]
    with (
        SpeculativeTools(
            shop.tools, read_only=names, past=PAST, model=shop_model, limits=limits, max_workers=8
        ) as made,
        made.session(first) as one,
        made.session(second) as other,
    ):
        followed(one, 70, 4)
        followed(other, 70, 4)
        assert one.report.num_started == num_orders
        assert other.report.num_started == (0 if is_shared else num_orders)


def test_a_rule_for_an_unknown_tool_is_refused_with_a_guess(shop: Shop) -> None:
    with pytest.raises(SettingsError, match=r"'get_ordr'.*get_order"):
        SpeculativeTools(shop.tools, read_only=["get_ordr"])


def test_messages_of_another_form_are_refused(tools: SpeculativeTools) -> None:
    with tools.session() as session, pytest.raises(ValueError, match="role"):
        session.follow([{"content": "x"}])


USER: ContextVar[str] = ContextVar("user", default="unknown")


async def async_inbox(folder: str) -> str:
    return f"{folder} of {USER.get()}"


def inbox(folder: str) -> str:
    return f"{folder} of {USER.get()}"


@pytest.mark.parametrize("tool", [inbox, async_inbox])
async def test_a_tool_runs_ahead_in_the_context_of_its_conversation(
    tool: Callable[..., Any], shop_model: CallModel
) -> None:
    limits = AheadLimits(threshold=0.0)
    with SpeculativeTools({"inbox": tool}, read_only=["inbox"], model=shop_model, limits=limits) as tools:
        USER.set("ann")
        session = tools.session("ann")
        session.expect("inbox", {"folder": "new"})
        session.settle()
        assert await session.acall("inbox", {"folder": "new"}) == "new of ann"
        assert session.close().num_used == 1
