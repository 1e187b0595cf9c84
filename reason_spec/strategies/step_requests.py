"""The engines' requests at a position, and drafted steps in the target's tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.segment import StopScanner
from reason_spec.settings import StrategySettings
from reason_spec.strategies.answer_work import ModelLane
from reason_spec.strategies.branch import Branch
from reason_spec.strategies.draft_ahead import DRAFT_RUN_TOKENS
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.types import Sampling, Step, TokenDrafterName

_SIBLING_TEMPERATURE: Final = 0.8
"""Siblings of the first draft are sampled at least this warm: a second greedy draft is the same."""


def sampling_of_sibling(sampling: Sampling, index: int) -> Sampling:
    """Return the sampling of draft ``index`` of one position; the first has the request's own."""
    if index == 0:
        return sampling
    noise = replace(sampling.noise, sample=sampling.noise.sample + (index << 32))
    return replace(sampling, temperature=max(sampling.temperature, _SIBLING_TEMPERATURE), noise=noise)


@dataclass(frozen=True, slots=True)
class StepRequests:
    """Makes the requests for the positions of one answer.

    ``redrafts``: the draft model writes the rest of a step again after a rejected token.
    ``takeover_tokens`` bounds what the target writes after a drafted step; None: a whole step.
    """

    settings: StrategySettings
    target: Engine
    draft: Engine
    redrafts: bool
    takeover_tokens: int | None = None

    def request(
        self, lane: ModelLane, branch: Branch, sampling: Sampling, step_prefix: tuple[int, ...] = ()
    ) -> EngineRequest:
        """Return the request for the rest of the step at a branch, after its tokens ``step_prefix``."""
        left = branch.request
        prefix = left.target_prompt if lane == "target" else left.draft_prompt
        assert prefix is not None
        step_prefix_text = self.target.tokenizer.decode(step_prefix) if step_prefix else ""
        longest = self.settings.step_max_tokens
        if lane == "target" and branch.drafts and self.takeover_tokens is not None:
            longest = min(longest, self.takeover_tokens)
        return EngineRequest(
            prefix=prefix.extend(step_prefix) if step_prefix else prefix,
            max_tokens=min(longest, left.max_tokens) - len(step_prefix),
            sampling=sampling,
            boundary=left.boundary,
            stops=left.stops,
            stop_context=left.stop_context(left.text_before + step_prefix_text),
            step_context=step_prefix_text,
            begins_in=left.begins_in,
            text=left.text if lane == "target" else left.draft_text,
            cache_key=left.cache_key,
            siblings=left.siblings if lane == "target" else "",
            token_drafter=self._token_drafter(lane),
            model_drafts=lane == "target" and self.target.drafts_itself,
            refusal_threshold=self.settings.refusal_threshold if lane == "target" else None,
            draft_tree=self.settings.draft_tree,
            num_draft_tokens=self.settings.num_draft_tokens,
            # With no other answer live the planner decides, however many branches this one has.
            limit_drafts=left.budget.beside_others,
            priority=branch.distance,
            stream=self.redrafts,
            delta_tokens=1 if lane == "target" else DRAFT_RUN_TOKENS,
        )

    def _token_drafter(self, lane: ModelLane) -> TokenDrafterName:
        if lane == "draft":
            return "none"
        # Where the draft model drafts again, the tokens of prompt lookup only make passes longer.
        return self.settings.token_drafter_or("none" if self.redrafts else "prompt_lookup")

    def ends_step(self, request: EngineRequest, token: int) -> bool:
        """Return whether a token ends the step that the request begins with."""
        tokenizer, scanner = self.target.tokenizer, request.boundary_scanner()
        token_bytes = tokenizer.token_bytes(token)
        stops = StopScanner(request.stops, request.stop_context)
        return (
            token in tokenizer.eos_ids
            or (scanner is not None and scanner.feed(token_bytes))
            or stops.feed(token_bytes.decode(errors="replace")) is not None
        )

    def for_target(self, step: Step, step_prefix: tuple[int, ...]) -> Step:
        """Return a drafted step whole, in the target's tokens."""
        tokenizer = self.target.tokenizer
        own = tokens_for(step, self.target)
        drafts = self.draft.tokenizer
        if step.finish == "stop" and step.tokenizer_id == drafts.tokenizer_id != tokenizer.tokenizer_id:
            # The stop string is no part of the text; a judge of tokens must see that it ends the answer.
            own = tokenizer.encode(drafts.decode(step.tokens))
        tokens = (*step_prefix, *own)
        step = replace(step, tokens=tokens, tokenizer_id=tokenizer.tokenizer_id)
        if not step_prefix:
            return step
        prefix_text = tokenizer.decode(step_prefix)
        num_cut = min(step.num_stop_overlap, len(prefix_text))
        return replace(
            step,
            text=prefix_text[: len(prefix_text) - num_cut] + step.text,
            logprobs=None,
            num_stop_overlap=step.num_stop_overlap - num_cut,
        )
