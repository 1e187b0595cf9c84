"""Both sides of the pipe have the same prefixes, as long as one side holds them."""

from __future__ import annotations

import asyncio
import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.engines.worker.messages import OfferHint, SetPriority, Submit, SubmitScore, ToWorker
from reason_spec.engines.worker.prefixes import ReceivedPrefixes, SentPrefixes
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix

pytestmark = pytest.mark.usefixtures("quick_collections")


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 9), max_size=4))), st.integers(0, 20))
def test_the_worker_finds_what_was_told(nodes: list[tuple[int, list[int]]], kept: int) -> None:
    told, known = SentPrefixes(), ReceivedPrefixes()
    prefixes = [Prefix((1, 2), owner="ana")]
    for parent, tokens in nodes:
        prefixes.append(prefixes[parent % len(prefixes)].extend(tuple(tokens)))
    for prefix in prefixes[::-1]:
        parts = told.encode(prefix)
        assert (parts.base is None) == (len(known) == 0)
        found = known.decode(parts)
        assert (found.to_tuple(), found.owner) == (prefix.to_tuple(), "ana")
        assert known.decode(told.encode(prefix)) is found
    assert len(known) == len(prefixes)
    left = prefixes[kept % len(prefixes)]
    num_left = len(list(left.nodes()))
    del prefixes, prefix
    gc.collect()
    known.forget(told.take_dropped())
    assert len(known) == num_left
    assert known.decode(told.encode(left)).to_tuple() == left.to_tuple()
    assert told.encode(left.extend((7,))).nodes[0][1] == (7,)


async def test_no_message_about_a_step_holds_the_text_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine("target", EngineSettings(model="unused"))
    monkeypatch.setattr(engine, "_info", object())
    sent: list[ToWorker] = []
    monkeypatch.setattr(engine, "_send", sent.append)
    text = Prefix(tuple(range(100_000, 120_000)))
    engine.submit(EngineRequest(text, 8))
    assert len(pickle.dumps(sent.pop())) > 4 * len(text)
    step = text.extend((1, 2, 3))
    generation = engine.submit(EngineRequest(step, 8))
    generation.offer_hint((4, 5, 6))
    generation.set_priority(1)
    scoring = asyncio.create_task(engine.score(step.extend((4,)), (5, 6)))
    await asyncio.sleep(0)
    assert [type(message) for message in sent] == [Submit, OfferHint, SetPriority, SubmitScore]
    assert max(len(pickle.dumps(message)) for message in sent) < 2000
    scoring.cancel()
