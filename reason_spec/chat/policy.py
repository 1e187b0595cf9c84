"""Chooses the strategies of an answer from the settings, the request's policy and the loaded models.

A request may name a strategy and a verifier, or bound what they may change by a loss class:

- ``off``, or a server without room for drafts: the target alone;
- a loss class alone: the settings' strategy if it is within the class, else ``lookahead`` with the verifier
  of the class (``exact``, ``semantic``), else, without a draft, exact token-level speculation;
- a named strategy that changes more than the loss class allows is refused.

Early exit applies to the thinking, or to the whole answer of a model that does not think, where it is free
text: without tools, constraint and bias. A loss class other than ``shortened`` switches it off.

A requested depth or width is fixed: no planner changes it.

Constrained or biased output is written by the target alone. An answer that may end at a token id is written
without drafted steps, because a step of another model need not have that token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import Policy
from reason_spec.errors import MissingDependencyError, RequestError, SettingsError, first_mistake
from reason_spec.settings import NO_EXIT, ExitSettings, StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.strategies.factory import strategy_class
from reason_spec.types import LossClass

_ORDER: Final[tuple[LossClass, ...]] = ("exact", "verified", "relaxed", "routed", "shortened")
_COMPARING: Final = {"exact": "exact", "verified": "semantic", "relaxed": "semantic"}


@dataclass(frozen=True, slots=True)
class AnswerStrategies:
    """The strategies of one answer.

    ``first`` writes the thinking, or the whole answer of a model that does not think; ``answer`` writes the
    text after the thinking. ``reason`` is set if they speculate less than requested. ``exit`` says when the
    text of ``first`` may end early.
    """

    first: Strategy
    answer: Strategy | None = None
    reason: str | None = None
    exit: ExitSettings = NO_EXIT

    @property
    def loss_class(self) -> LossClass:
        return "shortened" if self.exit.is_on else self.first.loss_class

    @property
    def need_draft(self) -> bool:
        return self.first.needs_draft or (self.answer is not None and self.answer.needs_draft)

    def without_drafts(self, accelerator: Accelerator, reason: str) -> AnswerStrategies:
        """Return the target alone for both; ``reason`` is left out if it was alone before."""
        alone = target_alone(accelerator)
        if all(one is None or one.name == alone.name for one in (self.first, self.answer)):
            return self
        return replace(self, first=alone, answer=self.answer and alone, reason=reason)

    def without_steps(self, accelerator: Accelerator, reason: str) -> AnswerStrategies:
        """Return the same with an answer without drafted steps; the thinking is left as it is."""
        last = self.answer or self.first
        if not drafts_steps(last):
            return self
        whole = exact_strategy(accelerator)
        if self.answer is None:
            return replace(self, first=whole, reason=reason)
        return replace(self, answer=whole, reason=reason)


def drafts_steps(strategy: Strategy) -> bool:
    """Return whether steps of a strategy may be the draft's: then no token of the target ends the answer."""
    return not strategy.takes_stop_ids


def choose_strategies(
    accelerator: Accelerator,
    policy: Policy,
    *,
    thinks: bool,
    offers_tools: bool,
    is_constrained: bool,
    is_biased: bool,
    ends_at_tokens: bool,
    draft_has_room: bool,
    may_exit: bool = True,
) -> AnswerStrategies:
    """Return the strategies of an answer; `reason_spec.chat.thinking` gives the reasons.

    Args:
        may_exit: whether the settings' early exit applies; a request may ask for one in any case.

    Raises:
        RequestError: the policy cannot be followed.
    """
    wanted = strategy_under(accelerator, policy)
    is_named = policy.loss_class is not None and policy.loss_class != "exact"
    # An answer after thinking, or a call, is too short for drafted steps.
    exact = exact_strategy(accelerator) if drafts_steps(wanted) and not is_named else wanted
    # What is not thinking is shortened only where it is free text.
    is_free = not (offers_tools or is_constrained or is_biased)
    ends_early = exit_under(accelerator, policy, by_settings=may_exit) if thinks or is_free else NO_EXIT
    if thinks:
        chosen = AnswerStrategies(wanted, exact, exit=ends_early)
    else:
        chosen = AnswerStrategies(exact if offers_tools else wanted, exit=ends_early)
    if not draft_has_room and (wanted.needs_draft or exact.needs_draft):
        chosen = chosen.without_drafts(accelerator, "the prompt is longer than the draft's context")
    if is_biased:
        return chosen.without_drafts(accelerator, "logit bias")
    if is_constrained and not thinks:
        return chosen.without_drafts(accelerator, "bound output")
    if is_constrained and exact.name != "autoregressive":
        return replace(chosen, answer=target_alone(accelerator), reason="bound output")
    if ends_at_tokens:
        return chosen.without_steps(accelerator, "stop token ids")
    return chosen


def strategy_under(accelerator: Accelerator, policy: Policy) -> Strategy:
    """Return the strategy that a policy asks for.

    Raises:
        RequestError: a name is unknown, a number is out of range, or a needed model is not loaded.
    """
    if policy.off:
        return target_alone(accelerator)
    settings = _settings(accelerator, policy)
    allowed = policy.loss_class
    strategy = _checked(accelerator, settings, policy.verifier)
    if allowed is None or _ORDER.index(strategy.loss_class) <= _ORDER.index(allowed):
        return strategy
    if policy.strategy is not None or policy.verifier is not None:
        raise RequestError(
            f"strategy {strategy.name} is of loss class {strategy.loss_class}, and {allowed} is asked for: "
            "name none, or another",
            param="reason_spec.loss_class",
        )
    if accelerator.draft is None:
        return exact_strategy(accelerator)
    lookahead = settings.model_copy(update={"name": "lookahead"})
    return _checked(accelerator, lookahead, _COMPARING[allowed])


def exit_under(accelerator: Accelerator, policy: Policy, *, by_settings: bool = True) -> ExitSettings:
    """Return when a policy lets the thinking end early.

    Raises:
        RequestError: the policy names a rule, and a loss class that forbids it.
    """
    settings = accelerator.settings.exit
    is_allowed = policy.loss_class in (None, "shortened")
    if policy.exit is None:
        applies = by_settings and is_allowed and not policy.off
        given: dict[str, object] = {}
    else:
        applies, given = True, {"rule": policy.exit}
        if policy.exit != "none" and not is_allowed:
            raise RequestError(
                f"early exit is of loss class shortened, and {policy.loss_class} is asked for: leave out "
                "one of the two",
                param="reason_spec.exit",
            )
    if policy.exit_threshold is not None:
        given["threshold"] = policy.exit_threshold
    return settings.model_copy(update=given) if applies else NO_EXIT


def exact_strategy(accelerator: Accelerator) -> Strategy:
    """Return the fastest strategy that writes the target's own tokens without drafted steps."""
    target, draft = accelerator.target, accelerator.draft
    name = "prompt_lookup" if target.takes_hints else "autoregressive"
    if target.drafts_itself:
        name = "self_speculative"
    elif draft is not None and target.takes_hints and can_share_tokens(draft, target):
        name = "speculative"
    settings = accelerator.settings.strategy
    return accelerator.generator.strategy(settings.model_copy(update={"name": name, "acceptance": "exact"}))


def target_alone(accelerator: Accelerator) -> Strategy:
    """Return the target without any drafts."""
    return accelerator.generator.strategy("autoregressive")


def _settings(accelerator: Accelerator, policy: Policy) -> StrategySettings:
    asked = {"name": policy.strategy, "depth": policy.depth, "width": policy.width}
    given = {name: value for name, value in asked.items() if value is not None}
    if policy.depth is not None or policy.width is not None:
        given["planner"] = False
    settings = accelerator.settings.strategy
    if policy.loss_class in ("exact", "verified"):
        given["acceptance"] = "exact"
    try:
        return StrategySettings.model_validate({**settings.model_dump(), **given})
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]
        raise RequestError(first_mistake(error), param=f"reason_spec.{place}") from None


def _checked(accelerator: Accelerator, settings: StrategySettings, verifier: str | None) -> Strategy:
    _check_models(accelerator, settings.name)
    if strategy_class(settings.name).relaxed_acceptance == "refused":
        settings = settings.model_copy(update={"acceptance": "exact"})
    try:
        return accelerator.generator.strategy(settings, verifier)
    except (SettingsError, MissingDependencyError) as error:
        param = "reason_spec.strategy" if verifier is None else "reason_spec.verifier"
        raise RequestError(str(error), param=param) from None


def _check_models(accelerator: Accelerator, name: str) -> None:
    """Check that the models of a strategy are loaded."""
    try:
        wanted = strategy_class(name)
    except SettingsError as error:
        raise RequestError(str(error), param="reason_spec.strategy") from None
    missing = None
    if wanted.needs_draft and accelerator.draft is None:
        missing = "a draft"
    elif wanted.needs_router and not any(strategy_class(one).needs_router for one in accelerator.strategies):
        missing = "a router"
    elif name == "speculative" and exact_strategy(accelerator).name != "speculative":
        missing = "a draft with the target's tokens, and an engine that takes them"
    if missing is not None:
        raise RequestError(
            f"strategy {name} needs {missing}, and this accelerator was started without: name one of "
            f"{', '.join(accelerator.strategies)}",
            param="reason_spec.strategy",
        )
