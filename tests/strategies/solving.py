"""Solves scripted problems with a strategy, and keeps what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from reason_spec.control.budget import SpeculationBudget
from reason_spec.engines.base import Engine
from reason_spec.engines.script import Script
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.events import Recorder
from reason_spec.lab.virtual_time import VirtualTimeLoop
from reason_spec.settings import StrategySettings, SuffixSettings
from reason_spec.strategies.autoregressive import Autoregressive
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.suffix_session import SuffixCacheSession, SuffixCacheSessions
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import Decision, Prefix, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

PROMPT = "question\n"


@dataclass
class Outcome:
    steps: list[Step]
    recorder: Recorder
    left_running: int
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for step in self.steps for token in step.tokens)


class AnyBirds(Verifier):
    """Accepts every step about as many birds, whatever its first word."""

    name = "any-birds"
    loss_class = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        same = drafted.text.split()[1:] == target.text.split()[1:]
        return Verdict("accept" if same else "reject")


class Agrees(Verifier):
    """Accepts every drafted step in place of the target's."""

    name = "agrees"
    loss_class = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        return Verdict("accept")


class Says(Verifier):
    """Says the same of every step, after a while."""

    name = "says"
    loss_class = "routed"
    judges_draft_only, compares = True, False

    def __init__(self, decision: Decision, seconds: float = 0.0, deadline: float = 2.0) -> None:
        super().__init__(deadline)
        self.decision, self.seconds = decision, seconds

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        await asyncio.sleep(self.seconds)
        return Verdict(self.decision)


class Breaks(Says):
    """Fails on every step."""

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        raise ZeroDivisionError("a broken judge")


def solve(
    make: Callable[[ScriptedEngine, ScriptedEngine], Strategy],
    target_script: Script,
    draft_script: Script,
    *,
    max_tokens: int = 10_000,
    stops: tuple[str, ...] = (),
    sampling: Sampling | None = None,
    draft_tokenizer: ScriptedTokenizer | None = None,
    stop_after: int | None = None,
    draft_fails_after: int | None = None,
    target_seconds: float = 0.0,
    draft_seconds: float = 0.0,
    target_kind: type[ScriptedEngine] = ScriptedEngine,
    suffix: SuffixCaches | None = None,
    budget: SpeculationBudget | None = None,
    virtual_time: bool = False,
    thinking: ThinkingLimit | None = None,
    told: list[tuple[int, str]] | None = None,
    question: str = PROMPT,
) -> Outcome:
    """Solve one problem; ``told`` takes the text that is certain before its step is final."""

    async def run() -> Outcome:
        target = target_kind("target", target_script, seconds_per_pass=target_seconds)
        draft = ScriptedEngine(
            "draft",
            draft_script,
            tokenizer=draft_tokenizer,
            fail_after=draft_fails_after,
            seconds_per_pass=draft_seconds,
        )
        await target.start()
        await draft.start()
        request = SolveRequest(
            question=question,
            target_prompt=Prefix(target.tokenizer.encode(PROMPT)),
            draft_prompt=Prefix(draft.tokenizer.encode(PROMPT)),
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            stops=stops,
            suffix_session=None if suffix is None else open_memory(suffix, target),
            budget=budget or SpeculationBudget(),
            thinking=thinking,
        )
        recorder = Recorder()
        if told is not None:
            recorder.on_text = lambda start, text: told.append((start, text))
        steps: list[Step] = []
        try:
            async with aclosing(make(target, draft).solve(request, recorder)) as writing:
                async for step in writing:
                    steps.append(step)
                    if len(steps) == stop_after:
                        break
            left = (await target.stats()).num_running + (await draft.stats()).num_running
        finally:
            await target.close()
            await draft.close()
        return Outcome(steps, recorder, left)

    with asyncio.Runner(loop_factory=VirtualTimeLoop if virtual_time else None) as runner:
        return runner.run(run())


async def write_alone(
    target: Engine, prompt: Prefix, limit: ThinkingLimit, max_tokens: int
) -> tuple[list[Step], Recorder]:
    """Let an engine that has started write a text with a limited thinking, without any draft."""
    recorder = Recorder()
    request = SolveRequest("question", prompt, None, max_tokens, thinking=limit)
    strategy = Autoregressive(StrategySettings(), target, None, None)
    return [step async for step in strategy.solve(request, recorder)], recorder


def open_memory(caches: SuffixCaches, target: ScriptedEngine) -> SuffixCacheSession | None:
    use: Literal["steps", "both"] = "both" if target.takes_texts else "steps"
    memories = SuffixCacheSessions(SuffixSettings(use=use), caches, target)
    return memories.open((("prompt", target.tokenizer.encode(PROMPT)),))


def autoregressive(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
    return Autoregressive(StrategySettings(), target, None, None)
