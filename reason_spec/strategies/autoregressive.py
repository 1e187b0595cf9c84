"""One request for the whole answer: the target alone, or with drafts at the token level."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import ClassVar

from reason_spec.control.budget import RequestedBudget
from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import SolveRequest, Strategy, UseOfAcceptance
from reason_spec.strategies.draft_ahead import DRAFT_RUN_TOKENS, DraftAhead, can_share_tokens
from reason_spec.strategies.step_cutter import StepCutter
from reason_spec.strategies.text_stream import TextStream
from reason_spec.types import Acceptance, LossClass, Step, TokenDrafterName


class Autoregressive(Strategy):
    """Plain decoding: no drafts at either level. Steps are cut from the stream as it comes."""

    name: ClassVar[str] = "autoregressive"
    needs_draft: ClassVar[bool] = False
    takes_stop_ids: ClassVar[bool] = True
    model_drafts: ClassVar[bool] = False
    """Whether a model in the target's engine drafts."""
    relaxed_acceptance: ClassVar[UseOfAcceptance] = "ignored"

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.acceptance.is_exact else "relaxed"

    @property
    def token_drafter(self) -> TokenDrafterName:
        return "none"

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        generation = self.target.submit(self._whole_request(request))
        stream = None
        if recorder.on_text is not None:
            stream = TextStream(
                recorder.on_text, self.target.tokenizer, generation.request, request.chars_before
            )
        recorder.start("target", request.num_steps_before, 0, "answer")
        num_used_tokens, has_ended = 0, False
        ahead: DraftAhead | None = None
        try:
            ahead = self._start_ahead(request, generation, recorder)
            longest, begins_in = self.settings.step_max_tokens, request.begins_in
            held = StepCutter(self.target.tokenizer, request.boundary, longest, "target", begins_in)
            async for delta in generation:
                request.budget.record_early_tokens(len(delta.tokens))
                if ahead is not None:
                    ahead.confirm(delta.tokens)
                if stream is not None:
                    stream.feed(delta.tokens)
                    stream.flush()
                for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
                    # One step is held back: the last one gets the text and the end of the result.
                    if (step := held.feed(token, logprob)) is not None:
                        num_used_tokens += len(step.tokens)
                        yield step
            result = await generation.result()
            has_ended = True
            yield held.last(result.text, result.finish, result.num_stop_overlap)
        finally:
            generation.cancel()
            usage = await generation.closed()
            if not has_ended:
                num_unused = usage.num_generated_tokens - num_used_tokens
                usage = replace(usage, num_discarded_tokens=usage.num_discarded_tokens + num_unused)
            recorder.add_work("target", usage, kept=True)
            if ahead is not None:
                await ahead.close()

    def _whole_request(self, request: SolveRequest) -> EngineRequest:
        return EngineRequest(
            prefix=request.target_prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stops=request.stops,
            stop_context=request.stop_context(request.text_before),
            stop_ids=request.stop_ids,
            text=self._text(request),
            may_be_cut=request.may_be_cut,
            cache_key=request.cache_key,
            siblings=self._siblings(request),
            token_drafter=self.token_drafter,
            model_drafts=self.model_drafts,
            draft_tree=self.settings.draft_tree,
            refusal_threshold=self.settings.refusal_threshold,
            num_draft_tokens=self.settings.num_draft_tokens,
            acceptance=self.acceptance,
            limit_drafts=request.budget.beside_others,
            constraint=request.constraint,
            logit_bias=request.logit_bias,
        )

    def _text(self, request: SolveRequest) -> int | None:
        """Return the text whose drafts may come from earlier ones; None where nothing is to be drafted."""
        return None

    def _siblings(self, request: SolveRequest) -> str:
        """Return the name of the samples that draft for each other; empty where nothing is to be drafted."""
        return ""

    def _start_ahead(
        self, request: SolveRequest, generation: Generation, recorder: Recorder
    ) -> DraftAhead | None:
        """Let the draft model write ahead of a generation, where the strategy has one."""
        return None


class PromptLookup(Autoregressive):
    """The target with prompt lookup, or the suffix cache, as its token-level drafter."""

    name: ClassVar[str] = "prompt_lookup"
    default_drafter: ClassVar[TokenDrafterName] = "prompt_lookup"
    relaxed_acceptance: ClassVar[UseOfAcceptance] = "refused"
    """Copied tokens are accepted exactly; some subclasses have tokens of a model."""

    @property
    def acceptance(self) -> Acceptance:
        return self.settings.accepts

    @property
    def token_drafter(self) -> TokenDrafterName:
        return self.settings.token_drafter_or(self.default_drafter)

    def _text(self, request: SolveRequest) -> int | None:
        return request.text

    def _siblings(self, request: SolveRequest) -> str:
        return request.siblings


class TokenRecycling(PromptLookup):
    """The target with recycled tokens, and prompt lookup, as its token-level drafter: no draft model.

    Every pass computes the likely tokens after each of its tokens; those are later drafts (arXiv 2408.08696).
    """

    name: ClassVar[str] = "token_recycling"
    default_drafter: ClassVar[TokenDrafterName] = "recycling"


class DraftModelSpeculation(PromptLookup):
    """The target with the draft model as its token-level drafter: speculative decoding.

    Recycled tokens and prompt lookup draft beside it where that is expected to pay.
    """

    name: ClassVar[str] = "speculative"
    default_drafter: ClassVar[TokenDrafterName] = "recycling"
    needs_draft: ClassVar[bool] = True
    relaxed_acceptance: ClassVar[UseOfAcceptance] = "applied"

    @property
    def requested_budget(self) -> RequestedBudget:
        return RequestedBudget(0, self.settings.num_draft_tokens)

    def _start_ahead(
        self, request: SolveRequest, generation: Generation, recorder: Recorder
    ) -> DraftAhead | None:
        if not can_share_tokens(self.draft, self.target):
            raise SettingsError(
                f"strategy {self.name} hands the draft's tokens to the target, but the two models have "
                "different tokenizers. Use lookahead, where steps cross as text, or another draft."
            )
        if not self.target.takes_hints:
            raise SettingsError(
                f"strategy {self.name} hands the draft's tokens to the target, whose engine takes none. Use "
                "lookahead, or autoregressive with a server or token_method that drafts by itself."
            )
        assert request.draft_prompt is not None
        return DraftAhead(
            self.draft,
            generation,
            EngineRequest(
                prefix=request.draft_prompt,
                max_tokens=1,
                sampling=request.sampling,
                text=request.draft_text,
                num_draft_tokens=self.settings.num_draft_tokens,
                delta_tokens=DRAFT_RUN_TOKENS,
                first_delta_tokens=1,
            ),
            recorder,
            max_ahead=self.settings.num_draft_tokens,
            row=(request.num_steps_before, 0),
            budget=request.budget,
        )


class SelfSpeculation(PromptLookup):
    """The target with drafts of its own: by some of its layers (SWIFT), or a head on its states (EAGLE).

    What ``token_drafter`` names drafts beside them.
    """

    name: ClassVar[str] = "self_speculative"
    relaxed_acceptance: ClassVar[UseOfAcceptance] = "applied"
    model_drafts: ClassVar[bool] = True


def whole_answer(settings: StrategySettings, target: Engine, draft: Engine) -> Autoregressive:
    """Return what writes an answer as one request of the target, with all there is for its tokens."""
    kind: type[PromptLookup] = PromptLookup
    if target.drafts_itself:
        kind = SelfSpeculation
    elif target.takes_hints and can_share_tokens(draft, target):
        kind = DraftModelSpeculation
    return kind(settings, target, draft, None)


def without_draft_model(settings: StrategySettings, target: Engine) -> Autoregressive:
    """Return what writes an answer as one request of the target, with drafts that need no second model."""
    if not target.takes_hints:
        return Autoregressive(settings, target, None, None)
    kind = SelfSpeculation if target.drafts_itself else TokenRecycling
    return kind(settings, target, None, None)
