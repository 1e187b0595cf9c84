"""A stored thinking is cut where the running answer ended, under each rule that asks for trial answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.engines.script import OPEN_THINKING
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import EngineError
from reason_spec.evaluation.prompts import ask_for
from reason_spec.events import Recorder
from reason_spec.lab.exit.live_rules import LiveStop, follow
from reason_spec.lab.exit.replay import Replay, num_tokens
from reason_spec.lab.exit.traces import ReadTrace, Trace, split_thinking
from reason_spec.lab.virtual_time import VirtualTimeLoop
from reason_spec.settings import load_settings
from reason_spec.strategies.thinking import CLOSER
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem, Sampling
from tests.strategies.test_early_exit import QUESTION, STEPS, Thinks

T = TypeVar("T")
RULES: dict[str, dict[str, Any]] = {
    "probes": {"threshold": 1.0, "least_chance": 0.3, "agreeing": 1},
    "deer": {},
    "dynasor": {"probe_every": 20, "agreeing": 2},
}
"""Settings under which each rule ends the thinking before its last step."""
by_rule = pytest.mark.parametrize("rule", RULES)


def run(rule: str, work: Callable[[Generator], Awaitable[T]], has_tags: bool, fail_after: int | None) -> T:
    """Work with a scripted target; a trial takes less time than a step."""
    thinks = Thinks(closer=CLOSER if has_tags else "")

    def script(text: str, sampling: Sampling) -> str:
        return thinks(text.partition(OPEN_THINKING if has_tags else f"{QUESTION}\n")[2], sampling)

    async def worked() -> T:
        values = {f"exit.{name}": value for name, value in RULES.get(rule, {}).items()}
        flags = {"target.kind": "scripted", "exit.rule": rule, "sampling.max_tokens": 4000, **values}
        tokenizer = ScriptedTokenizer(thinking=has_tags)
        target = ScriptedEngine(
            "target", script, tokenizer=tokenizer, seconds_per_pass=0.01, fail_after=fail_after
        )
        settings = load_settings(flags=flags)
        async with Accelerator(settings, target, None, None, ("autoregressive",)) as accelerator:
            return await work(accelerator.generator)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(worked())


def stored(response: str) -> Trace:
    return Trace("1", QUESTION, QUESTION, "10", response, split_thinking(response))


def answer(rule: str, has_tags: bool) -> tuple[str, Recorder]:
    """Return an answer that the target writes now."""

    async def write(generator: Generator) -> tuple[str, Recorder]:
        request = ask_for(Problem("1", QUESTION, "10"), generator.settings, strategy="autoregressive")
        found = await generator.answer(request)
        return found.text, found.recorder

    return run(rule, write, has_tags, None)


def replay(rule: str, response: str, *, has_tags: bool = True, fail_after: int | None = None) -> LiveStop:
    return run(rule, lambda generator: follow(generator, stored(response)), has_tags, fail_after)


@by_rule
@pytest.mark.parametrize(("has_tags", "opening"), [(True, ""), (True, OPEN_THINKING), (False, "")])
def test_a_stored_answer_is_cut_where_the_running_one_ended(rule: str, has_tags: bool, opening: str) -> None:
    whole, _ = answer("none", has_tags)
    _, live = answer(rule, has_tags)
    assert live.early_exit is not None
    assert 1 < live.early_exit.num_steps < len(STEPS)
    response = opening + whole
    found = replay(rule, response, has_tags=has_tags)
    assert found.stop is not None
    assert (found.stop.step + 1, found.stop.answer) == (live.early_exit.num_steps, live.early_exit.answer)
    kept = "".join(STEPS[: live.early_exit.num_steps])
    assert stored(response).thinking[: found.end].removeprefix("\n") == kept
    assert found.trials == tuple(event.text for event in live.events if event.kind == "written")
    assert found.fits


@by_rule
def test_the_text_behind_a_cut_does_not_move_it(rule: str) -> None:
    whole = replay(rule, "".join(STEPS) + CLOSER)
    assert whole.stop is not None
    # DEER reads the step before which it stops.
    num_read = whole.stop.step + 1 + (rule == "deer")
    for rest in ("No, it is 11.\n\nWait, it is 12.\n\n", ""):
        assert replay(rule, "".join(STEPS[:num_read]) + rest + CLOSER) == whole


@by_rule
def test_tokens_of_trials_are_counted_as_kept(rule: str) -> None:
    trace = stored("".join(STEPS) + f"{CLOSER}\n\n\\boxed{{10}}")
    found = replay(rule, trace.response)
    assert found.trials
    num_trial_tokens = sum(map(num_tokens, found.trials))
    with Grader() as grader:
        answers = Replay([ReadTrace(trace, (), (), ())], grader)
        cut = answers.cut(0, found.stop, found.end, num_trial_tokens)
    assert cut.num_tokens == num_tokens(trace.thinking)
    assert cut.num_kept == num_tokens(trace.thinking[: found.end]) + num_trial_tokens
    assert (cut.right_before, cut.right_after) == (True, True)


@by_rule
def test_a_trial_that_fails_ends_the_replay(rule: str) -> None:
    with pytest.raises(EngineError, match="scripted failure"):
        replay(rule, "".join(STEPS) + CLOSER, fail_after=0)
