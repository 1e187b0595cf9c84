"""The remote engine on real ``vllm serve`` processes, one of which is killed half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.remote.engine import RemoteEngine
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.errors import RequestError
from reason_spec.pair import embedded_path
from reason_spec.pair.generator import problems
from reason_spec.segment import Boundary
from reason_spec.settings import EngineSettings, load_settings
from reason_spec.settings.engines import RemoteSettings
from reason_spec.types import Constraint, NoiseKey, Prefix, Sampling
from tests.engines.serving import Serving, vllm_serve, wait_until_ready

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.timeout(600),
]
FOLDER = str(embedded_path("target"))
QUESTIONS = [problem.question for problem in islice(problems("test", 5), 6)]

# The planner lets the target write alone where the measured times say so: with a small target they may.
UNPLANNED = {"strategy.planner": False, "load_control.use": "off"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Serving]]:
    folder = tmp_path_factory.mktemp("serve")
    with ExitStack() as stack:
        started = [stack.enter_context(vllm_serve(folder / f"{index}.log", FOLDER)) for index in range(2)]
        for index, serving in enumerate(started):
            wait_until_ready(serving, folder / f"{index}.log")
        yield started


def remote_engine(*servers: Serving, **own: Any) -> RemoteEngine:
    urls = tuple(serving.url for serving in servers)
    settings = EngineSettings(model=FOLDER, kind="remote", remote=RemoteSettings(base_urls=urls, **own))
    return RemoteEngine("target", settings)


def prompts_of(engine: RemoteEngine) -> list[Prefix]:
    return [Prefix(engine.tokenizer.encode_chat([{"role": "user", "content": q}])) for q in QUESTIONS]


async def test_tokens_and_scores_are_those_of_the_torch_engine(servers: list[Serving]) -> None:
    remote = remote_engine(servers[0])
    own = TorchEngine("target", EngineSettings(model=FOLDER, device="cpu", dtype="float32"))
    await asyncio.gather(remote.start(), own.start())
    try:
        assert remote.by_tokens
        assert remote.tokenizer.tokenizer_id == own.tokenizer.tokenizer_id
        for prompt in prompts_of(remote)[:3]:
            results = [await engine.submit(EngineRequest(prompt, 440)).result() for engine in (remote, own)]
            assert results[0].tokens == results[1].tokens
            assert results[0].finish == results[1].finish == "eos"
            assert results[0].text == results[1].text
            assert results[0].logprobs == pytest.approx(results[1].logprobs, abs=1e-3)
            steps = [
                await engine.submit(EngineRequest(prompt, 440, boundary=Boundary())).result()
                for engine in (remote, own)
            ]
            assert steps[0].tokens == steps[1].tokens
            assert steps[0].finish == "boundary"
            scores = [await engine.score(prompt, steps[0].tokens) for engine in (remote, own)]
            assert scores[0].logprobs == pytest.approx(scores[1].logprobs, abs=1e-3)
            assert scores[0].best == scores[1].best == steps[0].tokens
    finally:
        await asyncio.gather(remote.close(), own.close())


async def test_text_crosses_as_well(servers: list[Serving]) -> None:
    """The same answers, where a server is only told text."""
    by_text, by_tokens = remote_engine(servers[0], send="text"), remote_engine(servers[0], send="tokens")
    await asyncio.gather(by_text.start(), by_tokens.start())
    try:
        for prompt in prompts_of(by_text)[:2]:
            texts = [
                (await engine.submit(EngineRequest(prompt, 440)).result()).text
                for engine in (by_text, by_tokens)
            ]
            assert texts[0] == texts[1]
    finally:
        await asyncio.gather(by_text.close(), by_tokens.close())


async def test_a_sample_is_drawn_again_by_its_seed(servers: list[Serving]) -> None:
    remote = remote_engine(servers[0])
    await remote.start()
    try:
        prompt = prompts_of(remote)[0]
        drawn = []
        for sample in (0, 0, 1, 2):
            sampling = Sampling(1.0, top_k=20, top_p=0.95, noise=NoiseKey(0, 0, sample))
            drawn.append((await remote.submit(EngineRequest(prompt, 120, sampling=sampling)).result()).tokens)
        assert drawn[0] == drawn[1]
        assert len(set(drawn)) > 1
    finally:
        await remote.close()


async def test_constraints_and_biases_reach_the_server_and_its_refusal_comes_back(
    servers: list[Serving],
) -> None:
    remote = remote_engine(servers[0])
    await remote.start()
    try:
        prompt = prompts_of(remote)[0]
        choice = Constraint(choice=("seven", "eleven"))
        for boundary in (None, Boundary()):
            result = await remote.submit(
                EngineRequest(prompt, 40, boundary=boundary, constraint=choice)
            ).result()
            assert (result.text in choice.choice, result.finish) == (True, "eos")
        token = remote.tokenizer.encode("7")[0]
        biased = await remote.submit(EngineRequest(prompt, 4, logit_bias=((token, 100.0),))).result()
        assert biased.tokens == (token,) * 4
        with pytest.raises(RequestError, match="refused a request with regex"):
            await remote.submit(EngineRequest(prompt, 4, constraint=Constraint(regex="(a"))).result()
    finally:
        await remote.close()


async def test_cancelled_requests_leave_the_server(servers: list[Serving]) -> None:
    remote = remote_engine(servers[0])
    await remote.start()
    try:
        generations = [remote.submit(EngineRequest(prompt, 400)) for prompt in prompts_of(remote)]
        async for _ in generations[0]:
            break
        assert await asyncio.to_thread(servers[0].num_running) > 0
        for generation in generations:
            generation.cancel()
        await asyncio.gather(*(generation.closed() for generation in generations))
        for _ in range(100):
            if await asyncio.to_thread(servers[0].num_running) == 0:
                break
            await asyncio.sleep(0.1)
        assert await asyncio.to_thread(servers[0].num_running) == 0
    finally:
        await remote.close()


async def test_a_served_target_with_a_draft_of_ones_own_answers_as_it_does_alone(
    servers: list[Serving],
) -> None:
    flags = {
        "target.kind": "remote",
        "target.remote.base_urls": [servers[0].url],
        "verifier.name": "exact",
        "draft.device": "cpu",
        **UNPLANNED,
    }
    settings = load_settings(flags=flags)
    async with Accelerator.from_settings(settings, strategies=("lookahead",)) as accelerator:
        for question in QUESTIONS[:2]:
            both = await accelerator.answer(question, strategy="lookahead")
            alone = await accelerator.answer(question, strategy="autoregressive")
            assert both.text == alone.text
            # Whether a drafted step is in time depends on the machine.
            assert both.recorder.draft_usage.num_generated_tokens > 0


async def test_a_served_target_judges_drafted_steps_and_mends_them_to_its_own(
    servers: list[Serving],
) -> None:
    """With the strictest threshold only greedy steps stand: the answers are the target's own."""
    flags = {
        "target.kind": "remote",
        "target.remote.base_urls": [servers[0].url],
        "verifier.name": "likelihood+exact",
        "verifier.thresholds": {"likelihood": 1.0},
        "verifier.deadline": 60.0,
        "draft.device": "cpu",
        **UNPLANNED,
    }
    settings = load_settings(flags=flags)
    async with Accelerator.from_settings(settings, strategies=("hybrid",)) as accelerator:
        for question in QUESTIONS[:2]:
            judged = await accelerator.answer(question, strategy="hybrid")
            alone = await accelerator.answer(question, strategy="autoregressive")
            assert judged.text == alone.text
            assert any(step.origin == "draft" for step in judged.steps)
            assert judged.recorder.target_usage.num_scored_tokens > 0


async def test_problems_survive_a_server_that_is_killed(servers: list[Serving]) -> None:
    """The last test: it leaves one server."""
    remote = remote_engine(*servers)
    await remote.start()
    try:
        prompts = prompts_of(remote)
        before = await asyncio.gather(
            *(remote.submit(EngineRequest(prompt, 440)).result() for prompt in prompts)
        )
        generations = [remote.submit(EngineRequest(prompt, 440)) for prompt in prompts]
        for generation in generations:
            async for _ in generation:
                break
        servers[1].kill()
        after = await asyncio.gather(*(generation.result() for generation in generations))
        assert [result.tokens for result in after] == [result.tokens for result in before]
        more = await asyncio.gather(
            *(remote.submit(EngineRequest(prompt, 440)).result() for prompt in prompts)
        )
        assert [result.tokens for result in more] == [result.tokens for result in before]
    finally:
        await remote.close()
