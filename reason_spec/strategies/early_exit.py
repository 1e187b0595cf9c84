"""Early exit of a running answer: makes the rule that the settings name, and shows it the final steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reason_spec.engines.base import Engine
from reason_spec.events import EarlyExit, Recorder
from reason_spec.exit.policy import SHIPPED, SHIPPED_READING, ExitMonitor, ExitPolicy, load_policy
from reason_spec.exit.probes import Position, ProbeLimits, Prober
from reason_spec.exit.reading import states_as_answer
from reason_spec.exit.rules import (
    DYNASOR_TEMPERATURE,
    DYNASOR_TOP_P,
    DeerRule,
    DynasorRule,
    ExitRule,
    PolicyRule,
    ProbedPolicyRule,
    ReadStep,
)
from reason_spec.exit.trials import DEER_PROMPT, DYNASOR_PROMPT, AnswerForm
from reason_spec.settings import ExitSettings
from reason_spec.strategies.thinking import MonitorDecision
from reason_spec.types import Sampling, Step

if TYPE_CHECKING:
    from reason_spec.strategies.base import SolveRequest

BOX_PROMPT: Final = "Therefore, the final answer is \\boxed{"
PHRASE_PROMPT: Final = "The answer is"
"""The words with which the demonstration pair ends an answer. It knows no boxes."""
_AGREEING: Final = {"probes": 2, "dynasor": 5}


class ExitWatch:
    """The `ThinkingMonitor` of one answer: shows the rule each step, and says where it ends the thinking.

    Args:
        answer_prompt: begins the answer of a model that does not mark its thinking, and asks for trials where
            neither the settings nor the rule have a prompt. Empty: the thinking is marked.
        request: begins where the thinking does.
    """

    def __init__(
        self,
        settings: ExitSettings,
        request: SolveRequest,
        target: Engine,
        draft: Engine | None,
        recorder: Recorder,
        *,
        answer_prompt: str = "",
    ) -> None:
        self._name = settings.rule
        self._answer_prompt = answer_prompt
        self._recorder = recorder
        self._rule = _rule_of(settings, request, target, draft, recorder, answer_prompt or BOX_PROMPT)
        self._unread: list[Step] = []
        self._began = request
        self.closing: str | None = None

    async def read(self, step: Step, before: SolveRequest, after: SolveRequest) -> MonitorDecision:
        """Show the rule a step; one that was cut is shown together with the next."""
        if not self._unread:
            self._began = before
        self._unread.append(step)
        if step.finish != "boundary":
            return "go_on"
        text = "".join(one.text for one in self._unread)
        num_tokens = sum(len(one.tokens) for one in self._unread)
        is_whole = len(self._unread) == 1
        self._unread = []
        found = await self._rule.read(ReadStep(text, num_tokens, _position(self._began), _position(after)))
        if found is None or not (found.keeps_step or is_whole):
            return "go_on"
        num_steps = before.num_steps_before + found.keeps_step
        self._recorder.end_early(EarlyExit(self._name, num_steps, found.answer, found.chance))
        if self._answer_prompt:
            is_answer = found.keeps_step and states_as_answer(text, found.answer)
            self.closing = "" if is_answer else f"\n\n{self._answer_prompt}"
        return "end_after" if found.keeps_step else "end_before"

    async def settle(self) -> None:
        """Wait until no trial runs; raise the error of one that failed."""
        await self._rule.settle()

    async def close(self) -> None:
        """Cancel trials that run, and count all."""
        await self._rule.close()


def _position(request: SolveRequest) -> Position:
    return Position(request.target_prompt, request.draft_prompt, request.num_steps_before)


def _rule_of(
    settings: ExitSettings,
    request: SolveRequest,
    target: Engine,
    draft: Engine | None,
    recorder: Recorder,
    trial_prompt: str,
) -> ExitRule:
    def prober(prompt: str, sampling: Sampling, *, reads_on: bool = False) -> Prober:
        form = AnswerForm.of(settings.probe_prompt or prompt)
        limits = ProbeLimits(
            settings.probe_tokens,
            settings.deadline,
            settings.probe_by == "draft_first",
            settings.confidence,
            reads_on,
        )
        return Prober(target, draft, form, limits, sampling, recorder, request.cache_key)

    noise = request.sampling.noise
    greedy = Sampling(noise=noise)
    if settings.rule == "deer":
        return DeerRule(prober(DEER_PROMPT, greedy), settings.confidence, settings.most_probes)
    if settings.rule == "dynasor":
        sampled = Sampling(DYNASOR_TEMPERATURE, top_p=DYNASOR_TOP_P, noise=noise)
        agreeing = settings.agreeing or _AGREEING["dynasor"]
        return DynasorRule(prober(DYNASOR_PROMPT, sampled, reads_on=True), settings.probe_every, agreeing)
    monitor = ExitMonitor(policy_of(settings), request.question)
    if settings.rule == "policy":
        return PolicyRule(monitor)
    assert settings.rule == "probes", "a rule is watched for"
    return ProbedPolicyRule(
        monitor,
        prober(trial_prompt, greedy),
        least_chance=settings.least_chance,
        confidence=settings.confidence,
        agreeing=settings.agreeing or _AGREEING["probes"],
        most_probes=settings.most_probes,
    )


def policy_of(settings: ExitSettings) -> ExitPolicy:
    """Return the policy that settings name, at their threshold.

    Raises:
        DataError: its file is missing or damaged.
    """
    policy = _load(settings.policy or (SHIPPED_READING if settings.read_along else SHIPPED))
    if settings.threshold is None:
        return policy
    return policy.model_copy(update={"threshold": settings.threshold})


@cache
def _load(path: Path) -> ExitPolicy:
    return load_policy(path)
