"""Rewards from a server: asked for at once, tried again where that helps, else unknown in its own words."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.engines.remote import servers
from reason_spec.errors import EngineError, SettingsError
from reason_spec.evaluation.prompts import ask_for
from reason_spec.settings import VerifierSettings, load_settings
from reason_spec.tasks.base import get_task
from reason_spec.types import Problem, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier, create_verifier
from tests.verifiers.reward_server import Fault, RewardServer, rewarding

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_FIRST_DELAY_SECONDS", 0.01)


def rate(text: str) -> float:
    return 0.9 if "good" in text.rpartition("<extra_0>")[2] else 0.2


def made(*servers: RewardServer, **own: Any) -> Verifier:
    urls = tuple(server.url for server in servers)
    return create_verifier("reward", VerifierSettings(reward_url=urls, **own))


async def ask(verifier: Verifier, *texts: str) -> list[Verdict]:
    context = VerificationContext("How many?", "First this.\n\n")
    steps = [Step(text, (1, 2), "draft", "boundary") for text in texts]
    return list(await asyncio.gather(*(verifier.verify(context, step) for step in steps)))


async def verdict_of(*servers: RewardServer, **own: Any) -> Verdict:
    verifier = made(*servers, **own)
    await verifier.start()
    try:
        return (await ask(verifier, "a good step"))[0]
    finally:
        await verifier.close()


@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("token", [None, "<extra_0>"])
async def test_steps_are_rated_at_once_with_all_that_stands_before_them(
    num_outputs: int, token: str | None
) -> None:
    with rewarding(rate, num_outputs=num_outputs) as server:
        verifier = made(server, reward_step_token=token, deadline=30.0)
        await verifier.start()
        server.seconds = 0.2
        started = time.perf_counter()
        told = await ask(verifier, *["a good step\n\n", "a bad step\n\n"] * 6)
        seconds = time.perf_counter() - started
        await verifier.close()
    assert [verdict.decision for verdict in told] == ["accept", "reject"] * 6
    assert [verdict.score for verdict in told] == [0.9, 0.2] * 6
    assert server.most_live > 1
    assert seconds < 12 * server.seconds
    path, body = next(sent for sent in server.bodies if "bad" in str(sent))
    assert body["model"] == "prm"
    question, answer = body["messages"]
    assert question == {"role": "user", "content": "How many?"}
    if token is None:
        assert path == "/classify"
        assert answer["content"] == "First this.\n\na bad step\n\n"
    else:
        assert path == "/pooling"
        assert answer["content"] == "First this.<extra_0>a bad step<extra_0>"
        assert body["continue_final_message"] is True


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(400, {"error": {"message": "the text is too long"}}), "the text is too long"),
        (Fault(404, {"detail": "Not Found"}), "Not Found"),
        (Fault(500, {"error": {"message": "the engine died"}}), "the engine died"),
        (Fault(503, "<html>busy</html>"), "busy"),
        (Fault(answer={"data": []}), "without data"),
        (Fault(answer={"rewards": [0.9]}), "without data"),
        (Fault(answer={"data": [{"label": "good"}]}), "answered None"),
        (Fault(answer={"data": [{"probs": [1.5]}]}), "between 0 and 1"),
        (Fault(answer={"data": [{"probs": [-0.2]}]}), "between 0 and 1"),
        (Fault(answer='{"data": [{"probs": [NaN]}]}'), "between 0 and 1"),
        (Fault(answer={"data": [{"probs": [-3.0, 3.5]}]}), "no softmax"),
        (Fault(answer={"data": [{"probs": [0.2, 0.3, 0.5]}]}), "one or two"),
        (Fault(answer={"data": [{"probs": ["good"]}]}), "a chance is a number"),
        (Fault(answer="not json"), "which is not JSON"),
        (Fault(breaks_off=True), "cannot be reached"),
        (Fault(seconds=4.0), "no reward within 1.8 seconds"),
    ],
    ids=str,
)
async def test_what_is_no_reward_is_unknown_in_the_servers_words(fault: Fault, said: str) -> None:
    with rewarding(rate) as server:
        server.always = fault
        verdict = await verdict_of(server, deadline=2.0)
    assert verdict.decision == "unknown"
    assert verdict.score is None
    assert said in verdict.reason


async def test_a_step_token_that_the_servers_model_does_not_read_is_unknown() -> None:
    with rewarding(rate) as server:
        server.always = Fault(answer={"data": [{"data": []}]})
        verdict = await verdict_of(server, reward_step_token="<extra_0>")
        assert verdict.decision == "unknown"
        assert "no reward at '<extra_0>'" in verdict.reason
        server.always, server.num_probes = Fault(answer={"data": [{"data": [0.1, 0.9]}]}), 1
        verdict = await verdict_of(server, reward_step_token="<extra_0>")
        assert verdict.decision == "unknown"


@pytest.mark.parametrize(
    "fault", [Fault(503), Fault(429), Fault(breaks_off=True), Fault(answer="garbage")], ids=str
)
async def test_what_another_try_may_mend_is_tried_again(fault: Fault) -> None:
    with rewarding(rate) as server:
        server.faults = [fault, fault]
        verdict = await verdict_of(server)
    assert verdict.score == 0.9
    assert len(server.bodies) == 4


async def test_a_refusal_is_not_tried_again() -> None:
    with rewarding(rate) as server:
        server.faults = [Fault(400)]
        assert (await verdict_of(server)).decision == "unknown"
    assert len(server.bodies) == 2


async def test_a_server_that_rests_longer_than_the_deadline_is_not_waited_for() -> None:
    with rewarding(rate) as server:
        server.faults = [Fault(503, {"error": {"message": "busy for a while"}}, {"Retry-After": "60"})]
        verifier = made(server, deadline=30.0)
        await verifier.start()
        told = [(await ask(verifier, "a good step"))[0] for _ in range(3)]
        await verifier.close()
    assert {verdict.decision for verdict in told} == {"unknown"}
    assert all("busy for a while" in verdict.reason for verdict in told)
    assert sum(verdict.cost_seconds for verdict in told) < 10


async def test_why_no_server_is_ready_is_said_after_a_success_too() -> None:
    with rewarding(rate) as server:
        verifier = made(server, deadline=30.0)
        await verifier.start()
        busy = Fault(503, {"error": {"message": "busy for a while"}}, {"Retry-After": "60"})
        server.faults = [busy, Fault(seconds=0.3)]
        told = await ask(verifier, "a good step", "a good turn")
        (last,) = await ask(verifier, "a good end")
        await verifier.close()
    assert sorted(verdict.decision for verdict in told) == ["accept", "unknown"]
    assert "busy for a while" in last.reason


async def test_another_server_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    with rewarding(rate) as broken, rewarding(rate) as whole:
        gone = RewardServer(rate)
        gone.close()
        broken.always = Fault(500)
        with caplog.at_level(logging.WARNING):
            verifier = made(gone, broken, whole)
            await verifier.start()
        assert gone.url in caplog.text
        told = await ask(verifier, *["a good step"] * 8)
        await verifier.close()
    assert {verdict.score for verdict in told} == {0.9}


async def test_what_is_wrong_at_the_start_is_said() -> None:
    gone = RewardServer(rate)
    gone.close()
    with pytest.raises(EngineError, match=rf"{gone.url} cannot be reached.*verifier\.reward_url"):
        await verdict_of(gone)
    verifier = made(gone)
    assert (await ask(verifier, "a step"))[0].decision == "unknown"
    await verifier.close()
    with rewarding(rate, models=("one", "two")) as server:
        with pytest.raises(EngineError, match=r"several models; it has one, two.*verifier\.reward_model"):
            await verdict_of(server)
        with pytest.raises(EngineError, match=r"no model 'mine'"):
            await verdict_of(server, reward_model="mine")
        assert (await verdict_of(server, reward_model="two")).score == 0.9
        assert server.bodies[-1][1]["model"] == "two"
        with pytest.raises(EngineError, match=r"'<s>' is no token of 'one'"):
            await verdict_of(server, reward_model="one", reward_step_token="<s>")
    raw = rewarding(lambda text: 7.5, num_outputs=1)
    with raw as server, pytest.raises(EngineError, match=r"a reward of 7\.5.*serve a classifier"):
        await verdict_of(server)


async def test_a_key_comes_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"reward_api_key_variable": "REWARD_KEY"}
    with rewarding(rate, key="secret") as server:
        with pytest.raises(EngineError, match=r"REWARD_KEY, named in verifier\.reward_api_key_variable"):
            await verdict_of(server, **own)
        monkeypatch.setenv("REWARD_KEY", "wrong-key")
        with pytest.raises(EngineError, match="answered 401: no such key") as refused:
            await verdict_of(server, **own)
        assert "wrong-key" not in str(refused.value)
        monkeypatch.setenv("REWARD_KEY", "two\nlines")
        with pytest.raises(EngineError, match="holds characters that no key has") as refused:
            await verdict_of(server, **own)
        assert "lines" not in str(refused.value)
        monkeypatch.setenv("REWARD_KEY", "secret\n")
        assert (await verdict_of(server, **own)).score == 0.9


def test_one_verifier_serves_one_event_loop_after_another() -> None:
    with rewarding(rate) as server:
        verifier = made(server)
        for _ in range(2):
            (verdict,) = asyncio.run(ask(verifier, "a good step"))
            assert verdict.score == 0.9


def test_settings_that_would_be_of_no_use_are_refused() -> None:
    with pytest.raises(SettingsError, match="is not a URL"):
        load_settings(flags={"verifier.reward_url": "localhost:8000"})
    with pytest.raises(SettingsError, match="leave out reward_trust_remote_code"):
        load_settings(flags={"verifier.reward_url": "http://a/v1", "verifier.reward_trust_remote_code": True})
    with pytest.raises(SettingsError, match="no reward_url"):
        load_settings(flags={"verifier.reward_api_key_variable": "KEY"})


@pytest.mark.parametrize("style", ["plain", "boxed", "examples"])
async def test_rsd_runs_with_served_rewards_beside_scripted_models(tmp_path: Path, style: str) -> None:
    """Of what the draft writes, what the server finds good stands; it sees the bare question."""
    asked = get_task("gsm8k").prompt("How many?", style)  # type: ignore[arg-type]
    story = {asked: "A good start.\n\nA bad turn.\n\nA good end."}
    own = {asked: "My own start.\n\nMy own turn.\n\nMy own end."}
    flags: dict[str, Any] = {"strategy.name": "rsd", "task.prompt": style}
    for name, script in (("target", own), ("draft", story)):
        (tmp_path / f"{name}.json").write_text(json.dumps(script))
        flags |= {f"{name}.kind": "scripted", f"{name}.model": str(tmp_path / f"{name}.json")}
    with rewarding(rate) as server:
        flags |= {"verifier.reward_url": server.root, "verifier.reward_step_token": "<extra_0>"}
        async with Accelerator.from_settings(load_settings(flags=flags)) as accelerator:
            request = ask_for(Problem("1", "How many?", "3", "gsm8k"), accelerator.settings)
            solution = await accelerator.answer(request)
            served = [body["messages"][0]["content"] for _, body in server.bodies[1:]]
    assert [step.origin for step in solution.steps] == ["draft", "target", "draft"], solution.text
    assert set(served) == {"How many?"}
