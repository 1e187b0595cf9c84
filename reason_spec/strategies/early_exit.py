"""Early exit of a running answer: makes the rule that the settings name, and shows it the final steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reason_spec.engines.base import Engine
from reason_spec.events import EarlyExit, Recorder
from reason_spec.exit.policy import SHIPPED, ExitMonitor, ExitPolicy, load_policy
from reason_spec.exit.probes import Place, Prober, ProbeLimits
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
from reason_spec.types import Sampling, Step

if TYPE_CHECKING:
    from reason_spec.strategies.base import SolveRequest

BOX_PROMPT: Final = "Therefore, the final answer is \\boxed{"
PHRASE_PROMPT: Final = "The answer is"
"""The words with which the demonstration pair ends an answer. It knows no boxes."""
_AGREEING: Final = {"probes": 2, "dynasor": 5}


class ExitWatch:
    """Reads the thinking of one answer, and says where the rule ends it.

    Args:
        request: begins where the thinking does.
        trial_prompt: what a trial is asked with where neither the settings nor the rule say it.
    """

    def __init__(
        self,
        settings: ExitSettings,
        request: SolveRequest,
        target: Engine,
        draft: Engine | None,
        recorder: Recorder,
        trial_prompt: str,
    ) -> None:
        self._name = settings.rule
        self._recorder = recorder
        self._rule = _rule_of(settings, request, target, draft, recorder, trial_prompt)
        self._unread = ""
        self._num_unread_tokens = 0
        self._began = request

    async def ends_before(self, step: Step, before: SolveRequest, after: SolveRequest) -> bool | None:
        """Read the next step; return whether the thinking ends before it or, for False, after it.

        None: it goes on. A step that was cut is read together with the next one.
        """
        if not self._unread:
            self._began = before
        self._unread += step.text
        self._num_unread_tokens += len(step.tokens)
        if step.finish != "boundary":
            return None
        places = (_place(self._began), _place(after))
        found = await self._rule.read(ReadStep(self._unread, self._num_unread_tokens, *places))
        is_whole = self._began is before
        self._unread, self._num_unread_tokens = "", 0
        if found is None or not (found.keeps_step or is_whole):
            return None
        num_steps = before.num_steps_before + found.keeps_step
        self._recorder.end_early(EarlyExit(self._name, num_steps, found.answer, found.chance))
        return not found.keeps_step

    async def close(self) -> None:
        """Cancel trials that run, and count all."""
        await self._rule.close()


def _place(request: SolveRequest) -> Place:
    return Place(request.target_prompt, request.draft_prompt, request.num_steps_before)


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
    policy = _load(settings.policy or SHIPPED)
    if settings.threshold is None:
        return policy
    return policy.model_copy(update={"threshold": settings.threshold})


@cache
def _load(path: Path) -> ExitPolicy:
    return load_policy(path)
