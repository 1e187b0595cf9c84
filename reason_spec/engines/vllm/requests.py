"""Requests to vLLM: their sampling parameters, and the reading of vLLM's outputs."""

from __future__ import annotations

from collections import Counter
from math import nan
from typing import Any

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.generation import EngineRequest, GenerationResult, Score
from reason_spec.engines.grammars import bounded_grammar, bounded_schema, structured_outputs
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.vllm.proposer import EXTRA_ARGUMENT
from reason_spec.speculation.seeds import seed_at
from reason_spec.types import Constraint, FinishReason, Usage


class GenerationState:
    """A request to generate."""

    def __init__(
        self, request: EngineRequest, num_prompt: int, tokenizer: Tokenizer, max_context: int
    ) -> None:
        self.output = RequestOutput(request, tokenizer, max_context - num_prompt)
        self._num_prompt = num_prompt
        self._num_cached = 0
        self._num_passes = 0
        self._num_drafted = 0
        self._accepted: list[int] = []
        self._num_rejections = 0

    def take(self, vllm_output: Any) -> None:
        """Take the tokens that one pass generated, up to the end of the generation."""
        (completion,) = vllm_output.outputs
        self._num_passes += 1
        self._num_cached = vllm_output.num_cached_tokens or self._num_cached
        # Set only for requests that vLLM ends itself.
        self.count_drafts(completion.spec_decode_metrics)
        tokens = list(completion.token_ids)
        pairs = zip(tokens, completion.logprobs, strict=True)
        self.output.extend(tokens, [logprobs[token].logprob for token, logprobs in pairs])
        if self.output.finish is None and completion.finish_reason in ("length", "stop"):
            self.output.finish = "length"

    def count_drafts(self, metrics: Any) -> None:
        """Take vLLM's own counts of drafts; None without speculation."""
        if metrics is None:
            return
        self._num_drafted = metrics.num_draft_tokens
        self._accepted = list(metrics.per_step_accepted)
        steps = zip(self._accepted, metrics.per_step_drafted, strict=True)
        self._num_rejections = sum(accepted < drafted for accepted, drafted in steps)

    @property
    def usage(self) -> Usage:
        counts = Counter(self._accepted)
        return Usage(
            num_prompt_tokens=self._num_prompt,
            num_cached_prompt_tokens=self._num_cached,
            num_generated_tokens=len(self.output.tokens),
            num_discarded_tokens=self.output.num_discarded,
            num_passes=self._num_passes,
            num_rejections=self._num_rejections,
            num_drafted_tokens=self._num_drafted,
            num_accepted_draft_tokens=sum(self._accepted),
            acceptance_histogram=tuple(counts[number] for number in range(max(counts, default=-1) + 1)),
        )

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        return self.output.result(finish, self.usage, error)


class ScoringState:
    """A request to score. The first try uses the prefix cache, which leaves cached positions unscored."""

    def __init__(
        self, prefix: tuple[int, ...], continuation: tuple[int, ...], owner: str, num_read: int
    ) -> None:
        self.owner = owner
        self.num_read = num_read
        self.prefix = prefix
        self.continuation = continuation
        self.reads_cache = True
        self._num_passes = 0

    @property
    def prompt(self) -> tuple[int, ...]:
        return (*self.prefix, *self.continuation)

    @property
    def parameters(self) -> Any:
        return _one_token(prompt_logprobs=1, skip_reading_prefix_cache=not self.reads_cache)

    def read(self, vllm_output: Any) -> Score | None:
        """Return the score; None if it has to be tried again without the cache.

        vLLM's rows of cached positions are uninitialized memory: they may hold the right tokens with the
        values of an earlier request, so nothing in a row shows that it is not a score.
        """
        rows, num_cached = vllm_output.prompt_logprobs, vllm_output.num_cached_tokens
        self._num_passes += 1
        if self.reads_cache and (num_cached or 0) >= len(self.prefix):
            self.reads_cache = False
            return None
        # From the end: some of vLLM's runners leave out the rows of cached positions.
        wanted = rows[-len(self.continuation) :]
        found = [row[token].logprob for row, token in zip(wanted, self.continuation, strict=True)]
        usage = Usage(
            num_prompt_tokens=len(self.prefix),
            num_passes=self._num_passes,
            num_scored_tokens=len(self.continuation),
        )
        best = tuple(max(row, key=lambda token: row[token].logprob) for row in wanted)
        return Score(tuple(found), best, usage)


class ChoiceState(ScoringState):
    """A request to score candidates for the next token.

    One token is generated, and the ``num_read`` largest log-probabilities are read; those of other candidates
    are NaN. vLLM can return those of given ids, but its engine dies of that while it speculates.
    """

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.prefix

    @property
    def parameters(self) -> Any:
        return _one_token(logprobs=self.num_read)

    def read(self, vllm_output: Any) -> Score | None:
        (completion,) = vllm_output.outputs
        (row,) = completion.logprobs
        found = tuple(row[token].logprob if token in row else nan for token in self.continuation)
        usage = Usage(num_prompt_tokens=len(self.prefix), num_passes=1, num_scored_tokens=1)
        return Score(found, tuple(completion.token_ids), usage)


def generation_parameters(request: EngineRequest, num_prompt: int) -> Any:
    """Return vLLM's ``SamplingParams`` of a request.

    Raises:
        ConstraintError: its constraint is too large, or no schema.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    drafting = {
        "num_draft_tokens": request.num_draft_tokens,
        "token_drafter": request.token_drafter,
        "text": request.text,
        "to_end": request.boundary is None,
        "may_be_cut": request.may_be_cut,
        "limit_drafts": request.limit_drafts,
        "cache_key": "\0".join(request.cache_key),
    }
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=None if sampling.greedy else seed_at(sampling, num_prompt),
        max_tokens=request.max_tokens,
        # Of the sampled token alone.
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={EXTRA_ARGUMENT: drafting},
        logit_bias=dict(request.logit_bias) or None,
        structured_outputs=None if request.constraint is None else _structured(request.constraint),
    )


def _structured(constraint: Constraint) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    fields = structured_outputs(constraint)
    if constraint.json_schema is not None:
        fields["json"] = bounded_schema(constraint.json_schema)
    if constraint.grammar is not None:
        fields["grammar"] = bounded_grammar(constraint.grammar)
    return StructuredOutputsParams(**fields)


def _one_token(**arguments: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, **arguments)
