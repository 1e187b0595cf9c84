"""Who writes an answer: from what the settings say, what a request asks for, and what the accelerator has.

A request may name a strategy and a verifier, or bound what they may change by a loss class:

- ``off``, or a server that sheds speculation: the target alone;
- a loss class alone: the settings' strategy where it keeps to it, else ``lookahead`` with the verifier of
  that class (``exact``, ``semantic``), else, without a draft, what writes tokens exactly;
- a strategy that changes more than the loss class allows is refused.

A depth or a width that is asked for is kept to: the planner is left out.

What is bound (by a constraint, by biases) the target writes alone, whatever the policy. What ends at a token
of the target is written without steps: a step of another model need not have that token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import Policy
from reason_spec.errors import MissingDependencyError, RequestError, SettingsError, first_mistake
from reason_spec.settings import StrategySettings
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.strategies.factory import strategy_class
from reason_spec.types import LossClass

_ORDER: Final[tuple[LossClass, ...]] = ("exact", "verified", "routed")
_COMPARING: Final = {"exact": "exact", "verified": "semantic"}


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: a strategy with everything set, the verifier it asks, and what it may change."""

    strategy: StrategySettings
    verifier: str | None
    loss_class: LossClass

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def needs_draft(self) -> bool:
        return strategy_class(self.strategy.name).needs_draft

    @property
    def is_stepwise(self) -> bool:
        return self.name not in ("autoregressive", "prompt_lookup", "speculative")


@dataclass(frozen=True, slots=True)
class Writers:
    """Who writes what of an answer.

    ``first`` writes the thinking, and all there is where the model does not think; ``answer`` what follows.
    ``reason`` says why the target writes alone, or without steps, where more was asked for.
    """

    first: Writer
    answer: Writer | None = None
    reason: str | None = None

    @property
    def need_draft(self) -> bool:
        return self.first.needs_draft or (self.answer is not None and self.answer.needs_draft)

    def without_drafts(self, accelerator: Accelerator, reason: str) -> Writers:
        """Return the same with the target alone; where it was by itself before, nothing is the reason."""
        alone = target_alone(accelerator)
        if all(writer is None or writer.name == alone.name for writer in (self.first, self.answer)):
            return self
        return Writers(alone, self.answer and alone, reason)

    def without_steps(self, accelerator: Accelerator, reason: str) -> Writers:
        """Return the same with an answer that comes without steps; the thinking is left as it is."""
        last = self.answer or self.first
        if not last.is_stepwise:
            return self
        whole = exact_writer(accelerator)
        if self.answer is None:
            return Writers(whole, None, reason)
        return replace(self, answer=whole, reason=reason)


def writers_for(
    accelerator: Accelerator,
    policy: Policy,
    *,
    thinks: bool,
    offers_tools: bool,
    is_constrained: bool,
    is_biased: bool,
    ends_at_tokens: bool,
    draft_has_room: bool,
) -> Writers:
    """Return who writes an answer, thinking included; `reason_spec.chat.thinking` says why.

    Raises:
        RequestError: the policy cannot be kept to.
    """
    wanted = writer_for(accelerator, policy)
    is_named = policy.loss_class is not None and policy.loss_class != "exact"
    # Steps are what an answer has few of.
    exact = exact_writer(accelerator) if wanted.is_stepwise and not is_named else wanted
    if thinks:
        writers = Writers(wanted, exact)
    else:
        writers = Writers(exact if offers_tools else wanted)
    if not draft_has_room:
        alone = writers.without_drafts(accelerator, "the prompt is longer than the draft's context")
        writers = alone if wanted.needs_draft or exact.needs_draft else writers
    if is_biased:
        return writers.without_drafts(accelerator, "logit bias")
    if is_constrained and not thinks:
        return writers.without_drafts(accelerator, "bound output")
    if is_constrained and exact.name != "autoregressive":
        return replace(writers, answer=target_alone(accelerator), reason="bound output")
    if ends_at_tokens:
        return writers.without_steps(accelerator, "stop token ids")
    return writers


def writer_for(accelerator: Accelerator, policy: Policy) -> Writer:
    """Return who writes under a policy.

    Raises:
        RequestError: a name is unknown, a number is out of range, or what is asked for cannot be had here.
    """
    if policy.off:
        return target_alone(accelerator)
    settings = _settings(accelerator, policy)
    wanted = policy.loss_class
    writer = _checked(accelerator, settings, policy.verifier)
    if wanted is None or _ORDER.index(writer.loss_class) <= _ORDER.index(wanted):
        return writer
    if policy.strategy is not None or policy.verifier is not None:
        raise RequestError(
            f"strategy {writer.name} is of loss class {writer.loss_class}, and {wanted} is asked for: name "
            "none, or another",
            param="reason_spec.loss_class",
        )
    if accelerator.draft is None:
        return exact_writer(accelerator)
    lookahead = settings.model_copy(update={"name": "lookahead"})
    return _checked(accelerator, lookahead, _COMPARING[wanted])


def exact_writer(accelerator: Accelerator) -> Writer:
    """Return what writes the target's own tokens the soonest, without steps."""
    target, draft = accelerator.target, accelerator.draft
    if draft is not None and target.takes_hints and can_share_tokens(draft, target):
        name = "speculative"
    else:
        name = "prompt_lookup" if target.takes_hints else "autoregressive"
    return Writer(accelerator.settings.strategy.model_copy(update={"name": name}), None, "exact")


def target_alone(accelerator: Accelerator) -> Writer:
    """Return the target without any drafts."""
    settings = accelerator.settings.strategy.model_copy(update={"name": "autoregressive"})
    return Writer(settings, None, "exact")


def _settings(accelerator: Accelerator, policy: Policy) -> StrategySettings:
    asked = {"name": policy.strategy, "depth": policy.depth, "width": policy.width}
    given = {name: value for name, value in asked.items() if value is not None}
    if policy.depth is not None or policy.width is not None:
        given["planner"] = False
    settings = accelerator.settings.strategy
    try:
        return StrategySettings.model_validate({**settings.model_dump(), **given})
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]
        raise RequestError(first_mistake(error), param=f"reason_spec.{place}") from None


def _checked(accelerator: Accelerator, settings: StrategySettings, verifier: str | None) -> Writer:
    _check_strategy(accelerator, settings.name)
    try:
        strategy = accelerator.strategy(settings, verifier)
    except (SettingsError, MissingDependencyError) as error:
        param = "reason_spec.strategy" if verifier is None else "reason_spec.verifier"
        raise RequestError(str(error), param=param) from None
    return Writer(settings, verifier if strategy.uses_verifier else None, strategy.loss_class)


def _check_strategy(accelerator: Accelerator, name: str) -> None:
    try:
        wanted = strategy_class(name)
    except SettingsError as error:
        raise RequestError(str(error), param="reason_spec.strategy") from None
    missing = None
    if wanted.needs_draft and accelerator.draft is None:
        missing = "a draft"
    elif wanted.needs_router and not any(strategy_class(one).needs_router for one in accelerator.strategies):
        missing = "a router"
    elif name == "speculative" and exact_writer(accelerator).name != "speculative":
        missing = "a draft with the target's tokens, and an engine that takes them"
    if missing is not None:
        raise RequestError(
            f"strategy {name} needs {missing}, and this accelerator was started without: name one of "
            f"{', '.join(accelerator.strategies)}",
            param="reason_spec.strategy",
        )
