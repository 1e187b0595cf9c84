"""Text that is streamed before its step is final is always a beginning of the final text, in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.events import Recorder
from reason_spec.segment import StopScanner
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive, DraftModelSpeculation
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.text_stream import TextStream
from reason_spec.types import Prefix
from reason_spec.verifiers.base import Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import AnyBirds


class ByteTokens:
    """Every byte is a token, so that characters are spread over several."""

    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


texts = st.text(st.sampled_from("ab.\n éß€😀"), max_size=30)
stops = st.lists(st.text(st.sampled_from("ab.\né"), min_size=1, max_size=4), max_size=3).map(tuple)


@given(text=texts, stops=stops, before=texts, start=st.integers(0, 50), data=st.data())
def test_what_is_streamed_is_a_beginning_of_the_final_text(
    text: str, stops: tuple[str, ...], before: str, start: int, data: st.DataObject
) -> None:
    longest = max(map(len, stops), default=1) - 1
    context = before[-longest:] if longest else ""
    request = EngineRequest(Prefix(), 1, stops=stops, stop_context=context)
    sent: list[tuple[int, str]] = []
    stream = TextStream(
        lambda place, piece: sent.append((place, piece)),
        ByteTokens(),  # type: ignore[arg-type]
        request,
        start,
    )
    tokens = list(text.encode())
    cuts = sorted({0, len(tokens), *data.draw(st.lists(st.integers(0, len(tokens)), max_size=8))})
    for one, other in pairwise(cuts):
        stream.feed(tokens[one:other])
        if data.draw(st.booleans()):
            stream.flush()
    stream.flush()
    hit = StopScanner(stops, context).feed(text)
    final = text if hit is None else text[: max(0, hit.start - len(context))]
    assert final.startswith("".join(piece for _, piece in sent))
    place = start
    for at, piece in sent:
        assert at == place
        assert piece
        place += len(piece)
    if hit is None and not stops:
        assert place == start + len(text)


STRATEGIES: dict[str, Callable[[ScriptedEngine, ScriptedEngine], Strategy]] = {
    "autoregressive": lambda target, draft: Autoregressive(StrategySettings(), target, None, None),
    "speculative": lambda target, draft: DraftModelSpeculation(StrategySettings(), target, draft, None),
    "exact": lambda target, draft: lookahead(target, draft, ExactVerifier()),
    "verified": lambda target, draft: lookahead(target, draft, AnyBirds()),
}


def lookahead(target: ScriptedEngine, draft: ScriptedEngine, verifier: Verifier) -> Strategy:
    return Lookahead(StrategySettings(planner=False), target, draft, verifier)


@pytest.mark.parametrize("name", STRATEGIES)
@given(
    agreement=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 5),
    stops=st.sampled_from([(), ("birds",), ("sang.\n\nThen",), (".\n\n",), ("Then 5", "end")]),
)
def test_pieces_are_of_the_answer_and_never_taken_back(
    name: str, agreement: float, seed: int, stops: tuple[str, ...]
) -> None:
    sent: list[tuple[int, str]] = []

    async def run() -> str:
        target = ScriptedEngine("target", StoryScript(seed, num_steps=4))
        draft = ScriptedEngine("draft", StoryScript(seed, agreement, num_steps=4))
        await target.start()
        await draft.start()
        request = SolveRequest(
            "question",
            Prefix(target.tokenizer.encode("question\n")),
            Prefix(draft.tokenizer.encode("question\n")),
            200,
            stops=stops,
        )
        recorder = Recorder(on_text=lambda place, text: sent.append((place, text)))
        try:
            return "".join(
                [step.text async for step in STRATEGIES[name](target, draft).solve(request, recorder)]
            )
        finally:
            await target.close()
            await draft.close()

    text = asyncio.run(run())
    if name == "verified":
        # A drafted step may yet take the place of the target's.
        assert not sent
    elif not stops:
        assert sent
    for place, piece in sent:
        assert text[place : place + len(piece)] == piece
    if name in ("autoregressive", "speculative"):
        joined = "".join(piece for _, piece in sent)
        # What a stop leaves of the text is the final step's to say.
        assert text.startswith(joined) if stops else joined == text
