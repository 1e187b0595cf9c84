"""Servers that fail, refuse, pause or hang: requests continue from their certain tokens, or end with a
reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import EngineError, RequestError
from reason_spec.types import Constraint, Prefix
from tests.engines.remote.answers import ANSWER, remote, whole
from tests.engines.upstream import Fault, Upstream, serving

pytestmark = pytest.mark.timeout(60)


FAULTS = [
    Fault("status", status=500),
    Fault("status", status=429, headers={"Retry-After": "0.2"}),
    Fault("break"),
    Fault("break", after=7),
    Fault("stall", after=9, seconds=5),
    Fault("garbage", after=3),
    Fault("error event", after=12),
    Fault("odd ending", after=5),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.after}")
@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_a_request_that_failed_goes_on_and_loses_nothing(
    make_upstream: Callable[..., Upstream],
    folder: Path, prompt: Prefix, tokenizer: HuggingFaceTokenizer, fault: Fault, takes_tokens: bool,
) -> None:  # fmt: skip
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream, remote={"idle_timeout": 1.5}) as engine:
            upstream.faults = [fault]
            result = await engine.submit(EngineRequest(prompt, 200)).result()
    assert (result.text, result.finish) == (ANSWER, "eos")
    assert tokenizer.decode(result.tokens) == ANSWER
    if fault.kind != "odd ending":
        assert len(upstream.streams) == 2


async def test_another_server_takes_over_at_once(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, answer: tuple[int, ...]
) -> None:
    with serving(make_upstream(seconds_per_chunk=0.005)) as first, serving(make_upstream()) as second:
        async with remote(folder, first, second) as engine:
            for upstream in (first, second):
                upstream.faults = [Fault("break", after=6)] * 2
            results = await asyncio.gather(*(whole(engine, prompt) for _ in range(6)))
            stats = await engine.stats()
    assert set(results) == {answer}
    assert (stats.num_running, stats.num_waiting) == (0, 0)


async def test_a_server_that_dies_is_left_alone_and_the_rest_goes_on(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, answer: tuple[int, ...]
) -> None:
    with serving(make_upstream(seconds_per_chunk=0.01)) as staying:
        dying = make_upstream(seconds_per_chunk=0.01)
        async with remote(folder, staying, dying) as engine:
            writing = [asyncio.create_task(whole(engine, prompt)) for _ in range(4)]
            async with asyncio.timeout(10):
                while dying.num_live < 2:  # noqa: ASYNC110 - the server runs in another thread
                    await asyncio.sleep(0.01)
            dying.faults = [Fault("break")] * 100
            dying.close()
            more = [asyncio.create_task(whole(engine, prompt)) for _ in range(4)]
            assert set(await asyncio.gather(*writing, *more)) == {answer}


async def test_what_goes_on_failing_ends_with_its_reason(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream, remote={"max_retries": 2}) as engine:
            upstream.faults = [Fault("status", status=503)] * 9
            with pytest.raises(EngineError, match=r"'target'.*tried 3 times.*answered 503: as was asked"):
                await whole(engine, prompt)
            upstream.faults = []
            assert await whole(engine, prompt)


async def test_a_refusal_is_not_tried_again(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream) as engine:
            upstream.faults = [Fault("status", status=400)]
            with pytest.raises(EngineError, match="answered 400: as was asked"):
                await whole(engine, prompt)
            assert len(upstream.streams) == 1


async def test_a_server_that_asks_for_a_pause_gets_it(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, answer: tuple[int, ...]
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream) as engine:
            upstream.faults = [Fault("status", status=429, headers={"Retry-After": "1"})]
            started = asyncio.get_running_loop().time()
            assert await whole(engine, prompt) == answer
            assert asyncio.get_running_loop().time() - started >= 1.0


async def test_deadlines_end_what_does_not_come(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream(seconds_per_chunk=0.05)) as upstream:
        limits = {"first_token_timeout": 0.3, "max_retries": 0}
        async with remote(folder, upstream, remote=limits) as engine:
            upstream.faults = [Fault("stall", seconds=2)]
            with pytest.raises(EngineError, match=r"sent nothing for 0\.3 seconds"):
                await whole(engine, prompt)
        async with remote(folder, upstream, remote={"total_timeout": 0.4}) as engine:
            with pytest.raises(EngineError, match=r"remote\.total_timeout=0\.4"):
                await whole(engine, prompt)


@pytest.mark.parametrize("takes_tokens", [True, False])
@pytest.mark.parametrize(
    ("status", "options", "names"),
    [
        (400, {"constraint": Constraint(regex="(a")}, "regex"),
        (422, {"logit_bias": ((5, 1.0),)}, "logit_bias"),
        (404, {"constraint": Constraint(regex="a+")}, None),
        (400, {}, None),
    ],
)
async def test_a_constraint_or_bias_that_the_server_refuses_is_the_fault_of_the_request(
    make_upstream: Callable[..., Upstream],
    folder: Path, prompt: Prefix, takes_tokens: bool, status: int, options: dict[str, Any], names: str | None,
) -> None:  # fmt: skip
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            upstream.faults = [Fault("status", status=status)]
            with pytest.raises((RequestError, EngineError), match="as was asked") as error:
                await engine.submit(EngineRequest(prompt, 5, **options)).result()
    if names is None:
        assert isinstance(error.value, EngineError)
    else:
        assert isinstance(error.value, RequestError)
        assert f"refused a request with {names}: as was asked" in str(error.value)
        assert upstream.url not in str(error.value)
