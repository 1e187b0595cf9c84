"""One request for the whole answer: the target alone, or with drafts at the token level."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from reason_spec.engines.base import Generation, Request, TokenDrafterName
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.segment import BoundaryScanner
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.draft_ahead import DraftAhead, can_share_tokens
from reason_spec.types import FinishReason, LossClass, Step


class Autoregressive(Strategy):
    """Plain decoding: no drafts at either level. Steps are cut from the stream as it comes."""

    name: ClassVar[str] = "autoregressive"
    needs_draft: ClassVar[bool] = False

    @property
    def loss_class(self) -> LossClass:
        return "exact"

    @property
    def token_drafter(self) -> TokenDrafterName:
        return "none"

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        generation = self.target.submit(
            Request(
                prefix=request.target_prompt,
                max_tokens=request.max_tokens,
                sampling=request.sampling,
                stops=request.stops,
                token_drafter=self.token_drafter,
                num_draft_tokens=self.settings.num_draft_tokens,
                num_lookup_paths=self.settings.lookup_paths,
            )
        )
        recorder.emit("started", "target", 0, 0)
        kept = False
        ahead: DraftAhead | None = None
        try:
            ahead = self._start_ahead(request, generation)
            held = _StepCutter(self, request)
            async for delta in generation:
                if ahead is not None:
                    ahead.confirm(delta.tokens)
                for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
                    # One step is held back: the last one gets the text and the end of the result.
                    if (step := held.feed(token, logprob)) is not None:
                        yield step
            result = await generation.result()
            kept = True
            yield held.last(result.text, result.finish, result.num_stop_overlap)
        finally:
            generation.cancel()
            recorder.add_work("target", await generation.closed(), kept=kept)
            if ahead is not None:
                await ahead.close(recorder)

    def _start_ahead(self, request: SolveRequest, generation: Generation) -> DraftAhead | None:
        """Let the draft model write ahead of a generation, where the strategy has one."""
        return None


class TokenSpeculation(Autoregressive):
    """The target alone with the token-level layer: what most users run today."""

    name: ClassVar[str] = "token"

    @property
    def token_drafter(self) -> TokenDrafterName:
        return self.settings.token_drafter


class DraftModelSpeculation(TokenSpeculation):
    """The target with the draft model as its token-level drafter: speculative decoding."""

    name: ClassVar[str] = "speculative"
    needs_draft: ClassVar[bool] = True

    @property
    def token_drafter(self) -> TokenDrafterName:
        return "none"

    def _start_ahead(self, request: SolveRequest, generation: Generation) -> DraftAhead | None:
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
            Request(
                prefix=request.draft_prompt,
                max_tokens=1,
                sampling=request.sampling,
                delta_tokens=self.settings.draft_run_tokens,
            ),
            max_ahead=self.settings.num_draft_tokens,
            min_chance=self.settings.min_draft_chance,
        )


class _StepCutter:
    """Cuts a stream of tokens into steps at the boundaries a stepwise strategy would see."""

    def __init__(self, strategy: Strategy, request: SolveRequest) -> None:
        self._tokenizer = strategy.target.tokenizer
        self._step_max_tokens = strategy.settings.step_max_tokens
        self._boundary = request.boundary
        self._scanner = BoundaryScanner(request.boundary)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._ready: FinishReason | None = None
        self._text_length = 0

    def feed(self, token: int, logprob: float) -> Step | None:
        """Take a token; return the step before it where that step is over."""
        step = self._cut(self._ready) if self._ready is not None else None
        self._tokens.append(token)
        self._logprobs.append(logprob)
        if self._scanner.feed(self._tokenizer.token_bytes(token)):
            self._ready = "boundary"
        elif len(self._tokens) == self._step_max_tokens:
            self._ready = "length"
        return step

    def last(self, text: str, finish: FinishReason, num_stop_overlap: int) -> Step:
        """Return what is left; ``text`` is the whole answer, whose end a stop may have cut."""
        assert num_stop_overlap == 0, "a whole answer has no earlier text a stop could begin in"
        if finish != "stop":
            return self._make(self._tokenizer.decode(self._tokens), finish, 0)
        overlap = max(0, self._text_length - len(text))
        return self._make(text[self._text_length :], finish, overlap)

    def _cut(self, finish: FinishReason) -> Step:
        step = self._make(self._tokenizer.decode(self._tokens), finish, 0)
        self._text_length += len(step.text)
        self._tokens, self._logprobs, self._ready = [], [], None
        self._scanner = BoundaryScanner(self._boundary)
        return step

    def _make(self, text: str, finish: FinishReason, num_stop_overlap: int) -> Step:
        return Step(
            text=text,
            tokens=tuple(self._tokens),
            origin="target",
            finish=finish,
            tokenizer_id=self._tokenizer.tokenizer_id,
            logprobs=tuple(self._logprobs),
            num_stop_overlap=num_stop_overlap,
        )
