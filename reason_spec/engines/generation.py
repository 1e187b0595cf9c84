"""What passes between an engine and its caller: a request, its tokens as they come, and its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from reason_spec.errors import EngineError, RequestError
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.types import Acceptance, Constraint, FinishReason, Prefix, Sampling, TokenDrafterName, Usage

TIMES_IF_LIKELY = 3
"""Factor of ``num_draft_tokens`` for drafts that are likely to be accepted."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation: the prefix to continue, how to choose tokens, and where to end.

    Attributes:
        prefix: the text before the generation, prompt included.
        max_tokens: the most tokens to generate, at least 1.
        sampling: how tokens are chosen.
        boundary: ends the generation with its step; None generates to the end of the text.
        stops: strings that end the generation, left out of its text.
        stop_context: the end of the prefix as text, in which a stop string may begin but not end.
        stop_ids: tokens that end the generation, left out of its text.
        step_context: the beginning of the step, where the prefix ends within one.
        begins_in: the open blocks (fences, tags, JSON) in which the step begins.
        hint: draft tokens from another layer. They are verified like any draft.
        text: number of a text in the suffix cache (`text_updates`), which drafts after hints and where no
            hint applies. Tokens that are final (`is_final`) are learned at once.
        may_be_cut: the caller may leave the end of what is generated out of the text.
        cache_key: tenant and scope; acceptance rates of hints are kept for each pair.
        siblings: requests of one tenant with this name draft for each other (torch): samples of one problem.
            Empty: with none.
        token_drafter: drafts beside hints and models.
        model_drafts: whether the model in the engine that drafts (`TorchSettings.drafter`) is asked.
        draft_tree: how the nodes of the draft tree are chosen (torch).
        refusal_threshold: the model in the engine drafts until the chance that one of its tokens is refused
            exceeds this. None: as long as one more is expected to save time.
        num_draft_tokens: the most draft tokens of a pass. The torch engine takes up to `TIMES_IF_LIKELY`
            times as many where they are likely.
        acceptance: when a draft token is accepted; one of the engine's ``acceptance_rules``. With a
            ``constraint`` it is exact.
        limit_drafts: lets the engine take fewer drafts where more would reduce the throughput of the batch.
        priority: smaller numbers go first, ties by arrival. Strategies use the number of undecided steps
            before this one, so that the next steps of all answers go before speculative ones.
        constraint: the grammar of the text, from the first token on. The text may end only where it is
            complete; ``max_tokens`` may cut it. Drafts that break it are not verified.
        logit_bias: pairs of a token id and a number that is added to its logit; each id once.
        stream: False delivers no tokens before the result, which saves a message a pass.
        delta_tokens: tokens that a delta holds at least, except the last.
        first_delta_tokens: tokens of the first delta; the second has the rest of ``delta_tokens``. None: as
            the others.

    Raises:
        ValueError: ``max_tokens`` is below 1, or a bias is not finite.
    """

    prefix: Prefix
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    boundary: Boundary | None = None
    stops: tuple[str, ...] = ()
    stop_context: str = ""
    stop_ids: frozenset[int] = frozenset()
    step_context: str = ""
    begins_in: OpenBlocks = NOTHING_OPEN
    hint: tuple[int, ...] = ()
    text: int | None = None
    may_be_cut: bool = False
    cache_key: tuple[str, str] = ("", "")
    siblings: str = ""
    token_drafter: TokenDrafterName = "none"
    model_drafts: bool = False
    draft_tree: DraftTreeName = "greedy"
    refusal_threshold: float | None = None
    num_draft_tokens: int = 16
    acceptance: Acceptance = field(default_factory=Acceptance)
    limit_drafts: bool = False
    priority: int = 0
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stream: bool = True
    delta_tokens: int = 1
    first_delta_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise ValueError(f"logit_bias must hold finite numbers, not {self.logit_bias}")

    @property
    def is_final(self) -> bool:
        """Whether all generated tokens become part of the text."""
        return self.boundary is None and not self.may_be_cut

    def boundary_scanner(self) -> BoundaryScanner | None:
        """Return a scanner that has read the beginning of the step; None without a boundary."""
        if self.boundary is None:
            return None
        scanner = BoundaryScanner(self.boundary, self.begins_in)
        scanner.feed(self.step_context.encode())
        return scanner


@dataclass(frozen=True, slots=True)
class Hint:
    """Draft tokens that follow the first ``start`` tokens of a generation; replaces hint ``index``."""

    tokens: tuple[int, ...]
    start: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens generated in one pass: the accepted drafts and one more."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation.

    Attributes:
        tokens: with the end-of-text token if ``finish`` is ``eos``, and with the token that completed the
            stop if it is ``stop``.
        text: without the end of the text and without the stop.
        logprobs: of the model at temperature 1, one a token. Constraints and biases do not change them,
            except in vLLM and remote servers.
        finish: why the generation ended.
        usage: the work of this generation.
        num_stop_overlap: characters of the stop string that lie in the prefix.
        error: why the engine failed; None unless ``finish`` is ``failed``.
        is_refused: the request is at fault for that, not the engine.
        first_entropy: entropy of the model at temperature 1 before the first token, in nats; None where the
            engine does not report it, and for requests without a boundary.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: FinishReason
    usage: Usage
    num_stop_overlap: int = 0
    error: str | None = None
    is_refused: bool = False
    first_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probabilities of the tokens of a given continuation, and the most likely token at each position."""

    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    usage: Usage


class Generation:
    """A request that an engine has taken.

    Iterating gives deltas as tokens are generated; ``result`` waits for the end. ``cancel`` may be called at
    any time, any number of times. Dropping the iterator does not cancel.
    """

    def __init__(
        self,
        request: EngineRequest,
        *,
        on_cancel: Callable[[], None],
        on_hint: Callable[[Hint], None],
        on_priority: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.request = request
        self.priority = request.priority
        self._on_cancel = on_cancel
        self._on_hint = on_hint
        self._on_priority = on_priority
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._result: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._cancel_requested = False

    @property
    def done(self) -> bool:
        return self._result.done()

    @property
    def cancel_requested(self) -> bool:
        return self._cancel_requested

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Delta]:
        while (delta := await self._deltas.get()) is not None:
            yield delta
        self._deltas.put_nowait(None)

    async def result(self) -> GenerationResult:
        """Wait for the end. A cancelled generation has a result too, with its tokens so far.

        Raises:
            EngineError: the engine failed; the message says why.
            RequestError: the engine's server refused what the request asks for.
        """
        result = await asyncio.shield(self._result)
        if result.finish == "failed":
            kind = RequestError if result.is_refused else EngineError
            raise kind(result.error or "the engine failed without saying why")
        return result

    async def closed(self) -> Usage:
        """Wait until the engine has freed this generation; return its work."""
        return (await asyncio.shield(self._result)).usage

    def cancel(self) -> None:
        """Ask the engine to stop this generation; returns at once."""
        if not self.done and not self._cancel_requested:
            self._cancel_requested = True
            self._on_cancel()

    def offer_hint(self, tokens: tuple[int, ...], *, start: int = 0, index: int = 0) -> None:
        """Give draft tokens that follow the first ``start`` tokens of this generation.

        May be called at any time: the engine drafts from where the generated tokens agree with the hint. A
        hint replaces the earlier one of its ``index``; those of several indices are verified as one tree.
        """
        if not self.done and tokens:
            self._on_hint(Hint(tokens, start, index))

    def set_priority(self, priority: int) -> None:
        """Change the priority, for example once the steps before this one are decided."""
        if not self.done and priority != self.priority:
            self.priority = priority
            self._on_priority(priority)

    def push(self, delta: Delta) -> None:
        """For engines: deliver tokens."""
        if not self.done:
            self._deltas.put_nowait(delta)

    def finish(self, result: GenerationResult) -> None:
        """For engines: deliver the end; the slot must be free by now."""
        if not self.done:
            self._result.set_result(result)
            self._deltas.put_nowait(None)
