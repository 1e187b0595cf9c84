"""The remote engine: whatever the server sends, the same text or a clear error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.chat.generation import logprobs_of
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.remote.engine import RemoteEngine
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import ConstraintError, EngineError, RequestError, SettingsError
from reason_spec.evaluation.outcome import Confidence
from reason_spec.segment import Boundary
from reason_spec.settings import load_settings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Constraint, NoiseKey, Prefix, Sampling
from tests.engines.remote.answers import ANSWER, STEPS, remote, whole
from tests.engines.upstream import Fault, Upstream, serving
from tests.strategies.solving import write_alone

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("chunk", [1, 3, 50])
async def test_tokens_come_as_they_were_sent_whatever_the_size_of_the_messages(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, answer: tuple[int, ...], chunk: int
) -> None:
    with serving(make_upstream(chunk=chunk)) as upstream:
        async with remote(folder, upstream) as engine:
            assert engine.by_tokens
            assert engine.max_context == 512
            generation = engine.submit(EngineRequest(prompt, 200))
            deltas = [delta async for delta in generation]
            result = await generation.result()
    assert result.tokens == answer == tuple(token for delta in deltas for token in delta.tokens)
    assert result.logprobs == (-0.5,) * len(answer)
    assert (result.text, result.finish) == (ANSWER, "eos")
    assert result.usage.num_passes == math.ceil(len(answer) / chunk)


@pytest.mark.parametrize("takes_tokens", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 100])
async def test_steps_end_where_they_end(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, takes_tokens: bool, chunk: int
) -> None:
    """Also inside a message, in brackets, and where the blank line straddles tokens."""
    texts: list[str] = []
    prefix = prompt
    with serving(make_upstream(chunk=chunk, takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            finish = ""
            while finish != "eos":
                result = await engine.submit(EngineRequest(prefix, 100, boundary=Boundary())).result()
                texts.append(result.text)
                prefix = prefix.extend(result.tokens)
                finish = result.finish
                assert len(texts) <= len(STEPS)
    assert texts == STEPS


async def test_text_crosses_where_tokens_cannot(
    make_upstream: Callable[..., Upstream],
    folder: Path, prompt: Prefix, tokenizer: HuggingFaceTokenizer, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with serving(make_upstream(takes_tokens=False, chunk=2)) as upstream:
        async with remote(folder, upstream) as engine:
            assert not engine.by_tokens
            generation = engine.submit(EngineRequest(prompt, 200))
            deltas = [delta async for delta in generation]
            result = await generation.result()
            with pytest.raises(EngineError, match="scores need a server that takes"):
                await engine.score(prompt, (1, 2))
        assert upstream.streams[0]["prompt"] == "<|start|>user\nHow many?<|end|><|start|>assistant\n"
    assert (result.text, result.finish) == (ANSWER, "eos")
    assert result.tokens == tuple(token for delta in deltas for token in delta.tokens)
    assert tokenizer.decode(result.tokens) == ANSWER
    assert len(deltas) > 3
    assert all(math.isnan(logprob) for logprob in result.logprobs)
    assert "does not return token ids" in caplog.text


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_a_stop_cuts_the_text_and_ends_the_request(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, takes_tokens: bool
) -> None:
    with serving(make_upstream(takes_tokens=takes_tokens, seconds_per_chunk=0.01)) as upstream:
        async with remote(folder, upstream) as engine:
            result = await engine.submit(EngineRequest(prompt, 200, stops=("the 1",))).result()
            assert (result.text, result.finish) == ("Ana has 3 of ", "stop")
            result = await engine.submit(
                EngineRequest(prompt, 200, stops=("xAna",), stop_context="..x")
            ).result()
            assert (result.finish, result.num_stop_overlap) == ("stop", 1)


async def test_stop_tokens_are_told_to_a_server_that_has_tokens(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, tokenizer: HuggingFaceTokenizer
) -> None:
    tokens = tokenizer.encode(ANSWER)
    stop = tokens[len(tokens) // 2]
    with serving(make_upstream(takes_tokens=True)) as upstream:
        async with remote(folder, upstream) as engine:
            assert engine.takes_stop_ids
            result = await engine.submit(EngineRequest(prompt, 200, stop_ids=frozenset({stop}))).result()
    cut = tokens.index(stop)
    assert (result.text, result.finish) == (tokenizer.decode(tokens[:cut]), "stop")
    assert result.tokens == tokens[: cut + 1]
    assert upstream.streams[-1]["stop_token_ids"] == [stop]
    with serving(make_upstream(takes_tokens=False)) as upstream:
        async with remote(folder, upstream) as engine:
            assert not engine.takes_stop_ids


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_a_limited_thinking_ends_with_a_step_or_at_its_token_and_the_answer_follows(
    make_upstream: Callable[..., Upstream],
    folder: Path, prompt: Prefix, tokenizer: HuggingFaceTokenizer, takes_tokens: bool,
) -> None:  # fmt: skip
    first = tokenizer.encode(STEPS[0])
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            for budget in (0, 5, len(first) + 2):
                limit = ThinkingLimit(max_tokens=budget, closer="", closing="So: ")
                steps, recorder = await write_alone(engine, prompt, limit, 300)
                thought = tokenizer.decode(first[:budget])
                assert "".join(step.text for step in steps) == f"{thought}So: {ANSWER}"
                assert recorder.thinking is not None
                assert recorder.thinking.num_tokens == min(budget, len(first))


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_the_limit_ends_a_text(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, takes_tokens: bool
) -> None:
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            result = await engine.submit(EngineRequest(prompt, 5)).result()
            assert result.finish == "length"
            assert ANSWER.startswith(result.text)
            if takes_tokens:
                assert len(result.tokens) == 5


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_constraints_and_biases_are_told_to_the_server(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, takes_tokens: bool
) -> None:
    """No step ends inside the server then: behind it the constraint would begin anew."""
    told = [
        (Constraint(json_schema='{"type": "object"}'), {"json": {"type": "object"}}),
        (Constraint(regex="a+"), {"regex": "a+"}),
        (Constraint(choice=("a", "b")), {"choice": ["a", "b"]}),
        (Constraint(grammar='start: "a"'), {"grammar": 'start: "a"'}),
    ]
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            for constraint, _ in told:
                await engine.check_constraint(constraint)
                bias = ((5, 2.5), (7, -100.0))
                request = EngineRequest(
                    prompt, 100, boundary=Boundary(), constraint=constraint, logit_bias=bias
                )
                assert (await engine.submit(request).result()).text == STEPS[0]
            await engine.submit(EngineRequest(prompt, 5)).result()
            with pytest.raises(ConstraintError, match="no JSON"):
                await engine.check_constraint(Constraint(json_schema="{"))
            with pytest.raises(RequestError, match="no JSON"):
                await engine.submit(EngineRequest(prompt, 5, constraint=Constraint(json_schema="{"))).result()
    *constrained, plain = upstream.streams
    assert [body["structured_outputs"] for body in constrained] == [words for _, words in told]
    assert all(body["logit_bias"] == {"5": 2.5, "7": -100.0} for body in constrained)
    assert not any(body.get("stop_token_ids") for body in constrained)
    assert not {"structured_outputs", "logit_bias"} & plain.keys()


async def test_a_server_that_ignores_a_constraint_is_noticed(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    """One that returns no token ids is not vLLM, and may leave fields that it does not know unread."""
    with serving(make_upstream(takes_tokens=False)) as upstream:
        async with remote(folder, upstream) as engine:
            constraint = Constraint(json_schema='{"type": "object"}')
            with pytest.raises(
                EngineError, match="is not what json_schema asks for: it breaks it at its beg"
            ):
                await engine.submit(EngineRequest(prompt, 200, constraint=constraint)).result()
            cut = await engine.submit(EngineRequest(prompt, 5, constraint=constraint)).result()
    assert cut.finish == "length"


async def test_a_stream_of_text_without_token_ids_is_no_empty_answer(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    """Only the first of several servers is probed: another may return none."""
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream, remote={"max_retries": 0}) as engine:
            upstream.returns_tokens = False
            with pytest.raises(EngineError, match="text without token ids"):
                await engine.submit(EngineRequest(prompt, 5)).result()


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_line_breaks_of_unicode_are_text(
    folder: Path, prompt: Prefix, tokenizer: HuggingFaceTokenizer, takes_tokens: bool
) -> None:
    text = "one\u2028two\u2029three\x85four\x0cfive"
    tokens = (*tokenizer.encode(text), *tokenizer.eos_ids)
    upstream = Upstream(
        lambda _: tokens, tokenizer.decode, tokenizer.encode, chunk=100, takes_tokens=takes_tokens
    )
    with serving(upstream):
        async with remote(folder, upstream, remote={"max_retries": 0}) as engine:
            result = await engine.submit(EngineRequest(prompt, 200)).result()
    assert (result.text, result.finish) == (text, "eos")


@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_a_constrained_text_that_broke_off_is_not_gone_on_with(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, takes_tokens: bool
) -> None:
    """The server would begin the constraint anew. What has not begun is tried again."""
    constraint = Constraint(regex=r"[\s\S]+")
    with serving(make_upstream(takes_tokens=takes_tokens)) as upstream:
        async with remote(folder, upstream) as engine:
            upstream.faults = [Fault("status"), Fault("break")]
            result = await engine.submit(EngineRequest(prompt, 200, constraint=constraint)).result()
            assert result.text == ANSWER
            upstream.faults = [Fault("break", after=3)]
            with pytest.raises(EngineError, match="under a constraint cannot be continued"):
                await engine.submit(EngineRequest(prompt, 200, constraint=constraint)).result()


async def test_cancelling_closes_the_stream(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream(seconds_per_chunk=0.02)) as upstream:
        async with remote(folder, upstream) as engine:
            generation = engine.submit(EngineRequest(prompt, 200))
            async for _ in generation:
                break
            generation.cancel()
            generation.cancel()
            usage = await generation.closed()
            result = await generation.result()
            for _ in range(100):
                if upstream.num_hung_up and not upstream.num_live:
                    break
                await asyncio.sleep(0.02)
    assert result.finish == "cancelled"
    assert 1 <= usage.num_generated_tokens < 20
    assert (upstream.num_live, upstream.num_hung_up) == (0, 1)


async def test_more_than_max_running_wait_and_the_most_urgent_goes_first(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    done: list[int] = []

    async def write(engine: RemoteEngine, priority: int) -> None:
        await whole(engine, prompt, priority=priority)
        done.append(priority)

    with serving(make_upstream(seconds_per_chunk=0.01)) as upstream:
        async with remote(folder, upstream, max_running=1) as engine:
            tasks = [asyncio.create_task(write(engine, priority)) for priority in (5, 4, 1, 3)]
            await asyncio.sleep(0.02)
            waiting = engine.submit(EngineRequest(prompt, 5, priority=2))
            await asyncio.sleep(0)
            assert (await engine.stats()).num_waiting == 4
            waiting.cancel()
            assert (await waiting.result()).finish == "cancelled"
            await asyncio.gather(*tasks)
    assert done == [5, 1, 3, 4]
    assert upstream.most_live == 1


async def test_a_request_that_became_certain_goes_before_those_that_came_earlier(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream(seconds_per_chunk=0.01)) as upstream:
        async with remote(folder, upstream, max_running=1) as engine:
            first, *others = [engine.submit(EngineRequest(prompt, 5, priority=1)) for _ in range(5)]
            later = engine.submit(EngineRequest(prompt, 5, priority=3))
            await asyncio.sleep(0)
            others[0].cancel()
            later.set_priority(0)
            await first.result()
            assert (await later.result()).finish == "length"
            assert [other.done for other in others] == [True, False, False, False]
            await asyncio.gather(*(other.result() for other in others))
            assert (await engine.stats()).num_waiting == 0


async def test_requests_go_to_the_server_with_the_fewest(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with (
        serving(make_upstream(seconds_per_chunk=0.005)) as first,
        serving(make_upstream(seconds_per_chunk=0.005)) as second,
    ):
        async with remote(folder, first, second) as engine:
            await asyncio.gather(*(whole(engine, prompt) for _ in range(8)))
            assert (len(first.streams), len(second.streams)) == (4, 4)
            first.bodies.clear()
            second.bodies.clear()
            for _ in range(4):
                await whole(engine, prompt)
    # One text after another, from one beginning: where it is cached.
    assert sorted((len(first.streams), len(second.streams))) == [0, 4]


async def test_scores_are_read_at_the_continuation(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream) as engine:
            score = await engine.score(prompt, (10, 20, 30))
            assert score.logprobs == (-0.1, -0.2, -0.3)
            assert score.best == (11, 21, 31)
            assert (await engine.score(prompt, ())).logprobs == ()
            with pytest.raises(EngineError, match="no room"):
                await engine.score(Prefix((1,) * 600), (1,))


async def test_what_decides_a_sample_is_sent_and_nothing_is_left_to_the_server(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream) as engine:
            sampling = Sampling(0.6, top_k=20, top_p=0.95, noise=NoiseKey(1, 2, 3))
            for _ in range(2):
                await whole(engine, prompt, sampling=sampling)
            other = Sampling(0.6, top_k=20, top_p=0.95, noise=NoiseKey(1, 2, 4))
            await whole(engine, prompt, sampling=other)
        first, again, third = upstream.streams
    assert first == again
    sent = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.0, "min_p": 0.0}
    assert sent.items() <= first.items()
    assert third["seed"] != first["seed"]


async def test_as_text_a_request_holds_top_k_where_it_is_set(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream(takes_tokens=False)) as upstream:
        async with remote(folder, upstream) as engine:
            for top_k in (20, 0):
                await whole(engine, prompt, sampling=Sampling(0.6, top_k=top_k, top_p=0.95))
    assert [body.get("top_k") for body in upstream.streams] == [20, None]
    assert all({"temperature": 0.6, "top_p": 0.95}.items() <= body.items() for body in upstream.streams)


async def test_a_server_is_told_whose_prefixes_it_may_use_and_no_name(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix
) -> None:
    with serving(make_upstream()) as upstream:
        async with remote(folder, upstream) as engine:
            for owner in ("", "ana", "ana", "ben"):
                await whole(engine, Prefix(prompt.to_tuple(), owner=owner))
        salts = [body.get("cache_salt") for body in upstream.streams]
    assert salts[0] is None
    assert salts[1] == salts[2]
    assert len({*salts}) == 3
    assert not any("ana" in (salt or "") for salt in salts)


async def test_a_key_comes_from_the_environment(
    make_upstream: Callable[..., Upstream], folder: Path, prompt: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"api_key_variable": "TARGET_KEY"}
    with serving(make_upstream(key="secret")) as upstream:
        with pytest.raises(EngineError, match="TARGET_KEY"):
            async with remote(folder, upstream, remote=own):
                pass
        with pytest.raises(EngineError, match="answered 401"):
            async with remote(folder, upstream):
                pass
        monkeypatch.setenv("TARGET_KEY", "secret")
        async with remote(folder, upstream, remote=own) as engine:
            assert await whole(engine, prompt)


async def test_what_is_wrong_at_the_start_is_said(
    make_upstream: Callable[..., Upstream], folder: Path, tmp_path: Path
) -> None:
    async def start(*upstreams: Upstream, **settings: Any) -> None:
        async with remote(settings.pop("folder", folder), *upstreams, **settings):
            pass

    with serving(make_upstream()) as good, serving(make_upstream(model="other", max_model_len=None)) as bare:
        gone = make_upstream()
        gone.close()
        with pytest.raises(EngineError, match=r"no server answers.*cannot be reached.*base_urls"):
            await start(gone)
        with pytest.raises(EngineError, match=r"has no model 'mine'; it has served.*served_model"):
            await start(good, remote={"served_model": "mine"})
        with pytest.raises(EngineError, match=r"does not say how long.*target\.max_context"):
            await start(bare)
        await start(bare, max_context=300)
        with pytest.raises(EngineError, match=r"remote\.tokenizer"):
            await start(good, folder=tmp_path)
        with pytest.raises(EngineError, match=r"set target\.remote\.base_urls"):
            await start()
        await start(good, gone)


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
@pytest.mark.parametrize("takes_tokens", [True, False])
async def test_steps_have_log_probabilities_where_the_server_returns_tokens(
    folder: Path, tokenizer: HuggingFaceTokenizer, takes_tokens: bool, strategy: str
) -> None:
    """Unknown ones are None, and the end of the text, which this server omits, does not count."""
    tokens = tokenizer.encode("3 + 4 is 7.")
    upstream = Upstream(lambda _: tokens, tokenizer.decode, tokenizer.encode, takes_tokens=takes_tokens)
    flags: dict[str, Any] = {"sampling.max_tokens": 200, "task.prompt": "plain", "verifier.name": "exact"}
    with serving(upstream):
        for name in ("target", "draft"):
            flags |= {f"{name}.model": str(folder), f"{name}.kind": "remote"}
            flags[f"{name}.remote.base_urls"] = (upstream.url,)
        settings = load_settings(flags=flags)
        async with Accelerator.from_settings(settings, strategies=("lookahead",)) as accelerator:
            solution = await accelerator.answer("How many?", strategy=strategy)
    assert solution.text == "3 + 4 is 7."
    (step,) = solution.steps
    confidence = Confidence.of_steps(solution.steps)
    if takes_tokens:
        assert step.logprobs is not None
        assert len(step.logprobs) == len(step.tokens)
        assert confidence is not None
        assert confidence.mean == pytest.approx(math.exp(-0.5))
        found = logprobs_of(replace(step, origin="target"), tokenizer)
        assert found is not None
        assert {item.logprob for item in found} == {-0.5}
    else:
        assert step.logprobs is None
        assert confidence is None
        assert logprobs_of(step, tokenizer) is None


async def test_another_models_tokenizer_is_noticed(
    make_upstream: Callable[..., Upstream], folder: Path
) -> None:
    with serving(make_upstream()) as upstream:
        upstream.to_tokens = lambda text: [1, 2, 3]
        with pytest.raises(EngineError, match=r"encodes .* another model's.*remote\.tokenizer"):
            async with remote(folder, upstream):
                pass


def test_urls_belong_to_remote_engines() -> None:
    with pytest.raises(SettingsError, match=r"set kind: remote"):
        load_settings(flags={"target.remote.base_urls": ("http://localhost:1/v1",)})
    with pytest.raises(SettingsError, match="is not a URL"):
        load_settings(flags={"target.kind": "remote", "target.remote.base_urls": "localhost:8000"})


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
async def test_a_remote_target_answers_with_a_draft_beside_it(
    make_upstream: Callable[..., Upstream], folder: Path, strategy: str
) -> None:
    """Draft and target are servers; the draft's text is right in every step."""
    slow = make_upstream(seconds_per_chunk=0.05 if strategy == "lookahead" else 0.0)
    with serving(slow) as target, serving(make_upstream()) as draft:
        flags: dict[str, Any] = {"verifier.name": "exact", "sampling.max_tokens": 200, "task.prompt": "plain"}
        for name, upstream in (("target", target), ("draft", draft)):
            flags |= {f"{name}.model": str(folder), f"{name}.kind": "remote"}
            flags[f"{name}.remote.base_urls"] = (upstream.url,)
        settings = load_settings(flags=flags)
        async with Accelerator.from_settings(settings, strategies=("lookahead",)) as accelerator:
            solution = await accelerator.answer("How many?", strategy=strategy)
            with pytest.raises(SettingsError, match="takes none"):
                await accelerator.answer("How many?", strategy="speculative")
    assert solution.text == ANSWER
    assert [step.text for step in solution.steps] == STEPS
    if strategy == "lookahead":
        assert {step.origin for step in solution.steps} == {"draft"}
