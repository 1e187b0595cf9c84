"""Drives vLLM's engine core step by step, in the worker's own process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from reason_spec.engines.base import EngineRequest, EngineStats, GenerationResult, Hint, Score, Tokenizer
from reason_spec.engines.constraints import bounded_grammar, bounded_schema, structured_outputs
from reason_spec.engines.vllm.proposer import EXTRA_ARGUMENT
from reason_spec.engines.worker.limits import Limits
from reason_spec.engines.worker.loop import Result, StepReport
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.engines.worker.writer import WrittenTokens
from reason_spec.errors import ReasonSpecError
from reason_spec.speculation.goodput import BatchTime
from reason_spec.speculation.seeds import seed_at
from reason_spec.types import Constraint, FinishReason, Prefix, Usage

_COMPILING_SECONDS = 0.001
_MOST_LOGPROBS = 20
"""So many of the largest are read at one place; vLLM's own bound unless it is set to less."""


class VllmLoop:
    """The requests of one ``vllm.LLMEngine`` whose engine core runs in this process.

    Texts are followed here: vLLM is told neither boundaries nor stops. After each pass a request that is
    complete is aborted before the next one begins, so nothing is run behind its end.
    """

    def __init__(
        self,
        engine: Any,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_context: int,
        takes_hints: bool,
        set_num_threads: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._core = engine.engine_core.engine_core
        self._tokenizer = tokenizer
        self._limits = Limits(max_context, vocab_size, "max_context")
        allowed = engine.vllm_config.model_config.max_logprobs
        self._num_read = _MOST_LOGPROBS if allowed < 0 else min(_MOST_LOGPROBS, allowed)
        self._takes_hints = takes_hints
        self._set_num_threads = set_num_threads
        self._writing: dict[int, _Writing] = {}
        self._scoring: dict[int, _Scoring] = {}
        # vLLM adds letters of its own to the name of a request, and knows it by the result inside.
        self._names: dict[int, str] = {}
        self._ended: list[tuple[int, Result]] = []
        self._retired_usage = Usage()
        self.pass_times = PassTimes()
        self._told_time: BatchTime | None = None
        self._num_scheduled = self._num_writing = 0
        self._watch_schedule(self._core.scheduler)

    # --- requests come in ------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._writing or self._scoring or self._ended)

    def submit(self, number: int, request: EngineRequest) -> None:
        prompt = request.prefix.to_tuple()
        writing = _Writing(request, len(prompt), self._tokenizer, self._limits.max_context)
        refusal = self._limits.refusal(prompt, num_text=len(prompt), num_needed=1)
        if refusal is None:
            refusal = self._try_to_add(number, prompt, request)
        if refusal is not None:
            self._ended.append((number, writing.result("failed", refusal)))
            return
        self._writing[number] = writing
        self.offer_hint(number, Hint(request.hint))

    def _try_to_add(self, number: int, prompt: tuple[int, ...], request: EngineRequest) -> str | None:
        """Hand a request to vLLM; return why it was not taken, None where it was."""
        if request.logit_bias and self._engine.vllm_config.speculative_config is not None:
            return "vLLM takes no logit_bias while tokens are drafted; set vllm.token_method to none for that"
        try:
            parameters = _writing_parameters(request, len(prompt))
            self._add(number, prompt, parameters, request.priority, request.prefix.owner)
        except ReasonSpecError as error:
            return str(error)
        except Exception as error:
            # One request that vLLM refuses must not end the engine, whatever class its refusal has.
            return " ".join(f"vLLM refused the request: {type(error).__name__}: {error}".split())
        return None

    def score(
        self, number: int, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool = False
    ) -> None:
        kind = _Choosing if alternatives else _Scoring
        scoring = kind(prefix.to_tuple(), continuation, prefix.owner, self._num_read)
        if not continuation:
            self._ended.append((number, Score((), (), Usage())))
            return
        text = (*scoring.prefix, *continuation)
        # vLLM writes one token behind what it scores.
        num_text = len(scoring.text) if prefix else 0
        if (refusal := self._limits.refusal(text, num_text=num_text, num_needed=1)) is not None:
            self._ended.append((number, refusal))
        else:
            self._start_scoring(number, scoring)

    def cancel(self, number: int) -> None:
        if number in self._writing:
            self._end(number, "cancelled")
        elif self._scoring.pop(number, None) is not None:
            self._engine.abort_request([self._names.pop(number)], internal=True)
            self._ended.append((number, "the engine was closed"))

    def cancel_all(self) -> None:
        for number in list(self._names):
            self.cancel(number)

    def offer_hint(self, number: int, hint: Hint) -> None:
        if not self._takes_hints or number not in self._writing:
            return
        if tokens := self._limits.known_tokens(hint.tokens):
            arguments = (self._names[number], tokens, hint.start, hint.index)
            self._engine.collective_rpc("reason_spec_offer", args=arguments)

    def set_priority(self, number: int, priority: int) -> None:
        scheduler = self._core.scheduler
        request = scheduler.requests.get(self._names.get(number))
        if request is None or self._engine.vllm_config.scheduler_config.policy != "priority":
            return
        request.priority = priority
        queue = scheduler.waiting
        if any(other is request for other in queue):
            # Its place in the heap is that of the earlier priority.
            queue.remove_request(request)
            queue.add_request(request)

    def reset_prefix_cache(self) -> str | None:
        if self._engine.reset_prefix_cache():
            return None
        return f"vLLM empties its prefix cache only when nothing runs, and {len(self._names)} requests do"

    def set_num_threads(self, num_threads: int) -> None:
        self._set_num_threads(num_threads)

    def stats(self) -> EngineStats:
        scheduler = self._core.scheduler
        usage = self._retired_usage
        for writing in self._writing.values():
            usage += writing.usage
        blocks = scheduler.kv_cache_manager.block_pool
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.get_num_unfinished_requests() - len(scheduler.running),
            num_cached_tokens=len(blocks.cached_block_hash_to_block) * scheduler.block_size,
            num_passes=self.pass_times.num_passes,
            busy_seconds=self.pass_times.busy_seconds,
            usage=usage,
        )

    # --- one pass --------------------------------------------------------------------------------

    def step(self) -> StepReport:
        report = StepReport()
        if self._writing or self._scoring:
            self._tell_time()
            started = time.perf_counter()
            outputs = self._engine.step()
            if self._num_scheduled:
                seconds = time.perf_counter() - started
                self.pass_times.add(self._num_scheduled, seconds)
                if self._num_writing:
                    self.pass_times.add_batch(self._num_scheduled, self._num_writing, seconds)
            elif not outputs:
                # All that is left waits for its constraint, which vLLM compiles in another thread.
                time.sleep(_COMPILING_SECONDS)
            for output in outputs:
                self._take(output, report)
        report.results += self._ended
        self._ended = []
        return report

    def _tell_time(self) -> None:
        """Let the proposer know how long passes take, whenever that was found out anew."""
        if self._takes_hints and (batch_time := self.pass_times.batch_time) is not self._told_time:
            self._told_time = batch_time
            self._engine.collective_rpc("reason_spec_take_time", args=(batch_time,))

    def _take(self, output: Any, report: StepReport) -> None:
        number = int(output.request_id)
        if (writing := self._writing.get(number)) is not None:
            writing.take(output)
            if (delta := writing.written.take_delta()) is not None:
                report.deltas.append((number, delta))
            if writing.written.finish is not None:
                self._end(number, writing.written.finish)
            elif output.finished:
                self._end(number, "failed", "vLLM gave the request up; its log says why")
        elif (scoring := self._scoring.get(number)) is not None and output.finished:
            del self._scoring[number], self._names[number]
            score = scoring.read(output)
            if score is None:
                self._start_scoring(number, scoring)
                return
            self._retired_usage += score.usage
            self._ended.append((number, score))

    def _end(self, number: int, finish: FinishReason, error: str | None = None) -> None:
        """Take a request out of the engine, count its drafts, and let the next report tell of its end."""
        name, writing = self._names.pop(number), self._writing.pop(number)
        request = self._core.scheduler.requests.get(name)
        if request is not None:
            writing.count_drafts(request.spec_decode_metrics)
            self._engine.abort_request([name], internal=True)
        if self._takes_hints:
            self._engine.collective_rpc("reason_spec_forget", args=(name,))
        self._retired_usage += writing.usage
        self._ended.append((number, writing.result(finish, error)))

    # --- helpers ---------------------------------------------------------------------------------

    def _watch_schedule(self, scheduler: Any) -> None:
        """Note how many tokens each pass takes, and of how many requests if none of it is a prompt's.

        vLLM tells nobody else.
        """
        schedule = scheduler.schedule

        def schedule_and_count(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._num_scheduled = output.total_num_scheduled_tokens
            drafts = output.scheduled_spec_decode_tokens
            tokens = output.num_scheduled_tokens
            only_write = all(count == 1 + len(drafts.get(name, ())) for name, count in tokens.items())
            self._num_writing = len(tokens) if only_write else 0
            return output

        scheduler.schedule = schedule_and_count

    def _add(self, number: int, prompt: Sequence[int], parameters: Any, priority: int, owner: str) -> None:
        asked: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        if owner:
            asked["cache_salt"] = owner
        self._names[number] = self._engine.add_request(str(number), asked, parameters, priority=priority)

    def _start_scoring(self, number: int, scoring: _Scoring) -> None:
        self._add(number, scoring.text, scoring.parameters, priority=0, owner=scoring.owner)
        self._scoring[number] = scoring


class _Writing:
    """A request to write."""

    def __init__(
        self, request: EngineRequest, num_prompt: int, tokenizer: Tokenizer, max_context: int
    ) -> None:
        self.written = WrittenTokens(request, tokenizer, max_context - num_prompt)
        self._num_prompt = num_prompt
        self._num_cached = 0
        self._num_passes = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._num_partings = 0
        self._histogram: tuple[int, ...] = ()

    def take(self, output: Any) -> None:
        """Take what one pass made certain, up to the end of the generation."""
        (completion,) = output.outputs
        self._num_passes += 1
        self._num_cached = output.num_cached_tokens or self._num_cached
        # Told only of requests that vLLM ends itself.
        self.count_drafts(completion.spec_decode_metrics)
        tokens = list(completion.token_ids)
        pairs = zip(tokens, completion.logprobs, strict=True)
        self.written.take(tokens, [logprobs[token].logprob for token, logprobs in pairs])
        if self.written.finish is None and completion.finish_reason in ("length", "stop"):
            self.written.finish = "length"

    def count_drafts(self, metrics: Any) -> None:
        """Take vLLM's own count of drafts; None where nothing is drafted."""
        if metrics is None:
            return
        steps = list(zip(metrics.per_step_accepted, metrics.per_step_drafted, strict=True))
        self._num_drafted = metrics.num_draft_tokens
        self._num_accepted = sum(accepted for accepted, _ in steps)
        counts = Counter(accepted for accepted, _ in steps)
        self._histogram = tuple(counts[number] for number in range(max(counts, default=-1) + 1))
        self._num_partings = sum(accepted < drafted for accepted, drafted in steps)

    @property
    def usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self._num_prompt,
            num_cached_prompt_tokens=self._num_cached,
            num_generated_tokens=len(self.written.tokens),
            num_discarded_tokens=self.written.num_discarded,
            num_passes=self._num_passes,
            num_partings=self._num_partings,
            num_drafted_tokens=self._num_drafted,
            num_accepted_draft_tokens=self._num_accepted,
            acceptance_histogram=self._histogram,
        )

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        return self.written.result(finish, self.usage, error)


class _Scoring:
    """A request to score. The first try reads the prefix cache, which leaves cached positions unscored."""

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
    def text(self) -> tuple[int, ...]:
        """What vLLM is given to read."""
        return (*self.prefix, *self.continuation)

    @property
    def parameters(self) -> Any:
        return _scoring_parameters(reads_cache=self.reads_cache)

    def read(self, output: Any) -> Score | None:
        """Return the score, None where it has to be tried again without the cache.

        vLLM's rows of cached positions are memory that nobody wrote: they may hold the right tokens with the
        values of an earlier request, so nothing in them tells that they are not scores.
        """
        rows, num_cached = output.prompt_logprobs, output.num_cached_tokens
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


class _Choosing(_Scoring):
    """A request to score what may come next: one token is written, and the largest logprobs are read.

    vLLM can be asked for those of some tokens by their ids, but its engine ends at that while tokens are
    drafted. Those that are not among the largest are NaN.
    """

    @property
    def text(self) -> tuple[int, ...]:
        return self.prefix

    @property
    def parameters(self) -> Any:
        return _choosing_parameters(self.num_read)

    def read(self, output: Any) -> Score | None:
        (completion,) = output.outputs
        (row,) = completion.logprobs
        found = tuple(row[token].logprob if token in row else nan for token in self.continuation)
        usage = Usage(num_prompt_tokens=len(self.prefix), num_passes=1, num_scored_tokens=1)
        return Score(found, tuple(completion.token_ids), usage)


def _writing_parameters(request: EngineRequest, num_prompt: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    drafting = {
        "num_draft_tokens": request.num_draft_tokens,
        "token_drafter": request.token_drafter,
        "text": request.text,
        "to_end": request.boundary is None,
        "limit_drafts": request.limit_drafts,
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
    """Return a constraint as vLLM takes it.

    Raises:
        ConstraintError: it is too large, or no schema.
    """
    from vllm.sampling_params import StructuredOutputsParams

    fields = structured_outputs(constraint)
    if constraint.json_schema is not None:
        fields["json"] = bounded_schema(constraint.json_schema)
    if constraint.grammar is not None:
        fields["grammar"] = bounded_grammar(constraint.grammar)
    return StructuredOutputsParams(**fields)


def _choosing_parameters(num_read: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        logprobs=num_read,
        ignore_eos=True,
        detokenize=False,
    )


def _scoring_parameters(*, reads_cache: bool) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=1,
        skip_reading_prefix_cache=not reads_cache,
        ignore_eos=True,
        detokenize=False,
    )
