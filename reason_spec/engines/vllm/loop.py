"""Drives vLLM's engine core step by step, in the worker's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.generation import EngineRequest, Hint, Score
from reason_spec.engines.limits import Limits
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.vllm.requests import (
    ChoiceState,
    GenerationState,
    ScoringState,
    generation_parameters,
)
from reason_spec.engines.worker.loop import Result, StepReport
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.errors import ReasonSpecError
from reason_spec.types import FinishReason, Prefix, Usage

_COMPILING_SECONDS = 0.001
_UPDATE_INTERVAL = 16
"""Passes between two reports of their times to the proposer."""
_MAX_LOGPROBS = 20
"""The most log-probabilities that are read at one position; vLLM's default bound."""


class VllmLoop:
    """The requests of one ``vllm.LLMEngine`` whose engine core runs in this process.

    Boundaries and stops are found here, not in vLLM. A complete request is aborted before the next pass, so
    nothing is computed after its end.
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
        self._num_read = _MAX_LOGPROBS if allowed < 0 else min(_MAX_LOGPROBS, allowed)
        self._takes_hints = takes_hints
        self._set_num_threads = set_num_threads
        self._generations: dict[int, GenerationState] = {}
        self._scores: dict[int, ScoringState] = {}
        # vLLM extends the id of a request, and uses the extended one internally.
        self._names: dict[int, str] = {}
        self._ended: list[tuple[int, Result]] = []
        self._retired_usage = Usage()
        self.pass_times = PassTimes()
        self._next_update = 0
        self._num_scheduled = self._num_generating = 0
        self._watch_schedule(self._core.scheduler)

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._generations or self._scores or self._ended)

    def submit(self, number: int, request: EngineRequest) -> None:
        prompt = request.prefix.to_tuple()
        state = GenerationState(request, len(prompt), self._tokenizer, self._limits.max_context)
        refusal = self._limits.refusal(prompt, num_text=len(prompt), num_needed=1)
        if refusal is None:
            refusal = self._try_to_add(number, prompt, request)
        if refusal is not None:
            self._ended.append((number, state.result("failed", refusal)))
            return
        self._generations[number] = state
        self.offer_hint(number, Hint(request.hint))

    def _try_to_add(self, number: int, prompt: tuple[int, ...], request: EngineRequest) -> str | None:
        """Add a request to vLLM; return why it was refused, or None."""
        if request.logit_bias and self._engine.vllm_config.speculative_config is not None:
            return "vLLM takes no logit_bias while tokens are drafted; set vllm.token_method to none for that"
        try:
            parameters = generation_parameters(request, len(prompt))
            self._add(number, prompt, parameters, request.priority, request.prefix.owner)
        except Exception as error:
            return _refusal(error)
        return None

    def score(
        self, number: int, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool = False
    ) -> None:
        kind = ChoiceState if alternatives else ScoringState
        state = kind(prefix.to_tuple(), continuation, prefix.owner, self._num_read)
        if not continuation:
            self._ended.append((number, Score((), (), Usage())))
            return
        text = (*state.prefix, *continuation)
        # vLLM generates one token after the scored ones.
        num_text = len(state.prompt) if prefix else 0
        if (refusal := self._limits.refusal(text, num_text=num_text, num_needed=1)) is not None:
            self._ended.append((number, refusal))
        else:
            self._start_scoring(number, state)

    def cancel(self, number: int) -> None:
        if number in self._generations:
            self._end(number, "cancelled")
        elif self._scores.pop(number, None) is not None:
            self._engine.abort_request([self._names.pop(number)], internal=True)
            self._ended.append((number, "the engine was closed"))

    def cancel_all(self) -> None:
        for number in list(self._names):
            self.cancel(number)

    def offer_hint(self, number: int, hint: Hint) -> None:
        if not self._takes_hints or number not in self._generations:
            return
        if tokens := self._limits.known_tokens(hint.tokens):
            arguments = (self._names[number], replace(hint, tokens=tokens))
            self._engine.collective_rpc("reason_spec_offer_hint", args=arguments)

    def set_priority(self, number: int, priority: int) -> None:
        scheduler = self._core.scheduler
        request = scheduler.requests.get(self._names.get(number))
        if request is None or self._engine.vllm_config.scheduler_config.policy != "priority":
            return
        request.priority = priority
        queue = scheduler.waiting
        if any(other is request for other in queue):
            # The heap is ordered by the earlier priority.
            queue.remove_request(request)
            queue.add_request(request)

    def reset_prefix_cache(self) -> str | None:
        if self._engine.reset_prefix_cache():
            return None
        return f"vLLM empties its prefix cache only without requests, and {len(self._names)} are running"

    def evict_first(self, owner: str, tokens: tuple[int, ...]) -> None:
        """Do nothing: vLLM evicts by last use alone."""

    def set_num_threads(self, num_threads: int) -> None:
        self._set_num_threads(num_threads)

    def stats(self) -> EngineStats:
        scheduler = self._core.scheduler
        blocks = scheduler.kv_cache_manager.block_pool
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.get_num_unfinished_requests() - len(scheduler.running),
            num_cached_tokens=len(blocks.cached_block_hash_to_block) * scheduler.block_size,
            num_passes=self.pass_times.num_passes,
            busy_seconds=self.pass_times.busy_seconds,
            usage=sum((state.usage for state in self._generations.values()), self._retired_usage),
        )

    # --- one pass --------------------------------------------------------------------------------

    def step(self) -> StepReport:
        report = StepReport()
        if self._generations or self._scores:
            self._update_proposer()
            started = time.perf_counter()
            outputs = self._engine.step()
            if self._num_scheduled:
                seconds = time.perf_counter() - started
                self.pass_times.add(self._num_scheduled, seconds)
                if self._num_generating:
                    self.pass_times.add_batch(self._num_scheduled, self._num_generating, seconds)
                    self.pass_times.add_generated(_num_new(outputs), seconds)
            elif not outputs:
                # All requests wait for their constraints, which vLLM compiles in another thread.
                time.sleep(_COMPILING_SECONDS)
            for output in outputs:
                self._take(output, report)
        report.results += self._ended
        self._ended = []
        return report

    def _update_proposer(self) -> None:
        """Send the times of passes now and then: tensor parallel workers are other processes."""
        num_passes = self.pass_times.num_passes
        if self._takes_hints and num_passes >= self._next_update:
            self._next_update = num_passes + _UPDATE_INTERVAL
            times = self.pass_times.batch_time, self.pass_times.least_chance
            self._engine.collective_rpc("reason_spec_set_pass_time", args=times)

    def _take(self, output: Any, report: StepReport) -> None:
        number = int(output.request_id)
        if (state := self._generations.get(number)) is not None:
            state.take(output)
            if (delta := state.output.take_delta()) is not None:
                report.deltas.append((number, delta))
            if state.output.finish is not None:
                self._end(number, state.output.finish)
            elif output.finished:
                self._end(number, "failed", "vLLM gave the request up; its log says why")
        elif (scoring := self._scores.get(number)) is not None and output.finished:
            del self._scores[number], self._names[number]
            score = scoring.read(output)
            if score is None:
                self._start_scoring(number, scoring)
                return
            self._retired_usage += score.usage
            self._ended.append((number, score))

    def _end(self, number: int, finish: FinishReason, error: str | None = None) -> None:
        """Remove a request from vLLM and add its result to the next report."""
        name, state = self._names.pop(number), self._generations.pop(number)
        request = self._core.scheduler.requests.get(name)
        if request is not None:
            state.count_drafts(request.spec_decode_metrics)
            self._engine.abort_request([name], internal=True)
        if self._takes_hints:
            self._engine.collective_rpc("reason_spec_forget", args=(name,))
        self._retired_usage += state.usage
        self._ended.append((number, state.result(finish, error)))

    # --- helpers ---------------------------------------------------------------------------------

    def _watch_schedule(self, scheduler: Any) -> None:
        """Count the tokens of each pass, and its requests if it has no prompts.

        vLLM reports neither.
        """
        schedule = scheduler.schedule

        def schedule_and_count(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._num_scheduled = output.total_num_scheduled_tokens
            drafts = output.scheduled_spec_decode_tokens
            tokens = output.num_scheduled_tokens
            is_decode = all(count == 1 + len(drafts.get(name, ())) for name, count in tokens.items())
            self._num_generating = len(tokens) if is_decode else 0
            return output

        scheduler.schedule = schedule_and_count

    def _add(self, number: int, prompt: Sequence[int], parameters: Any, priority: int, owner: str) -> None:
        inputs: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        if owner:
            inputs["cache_salt"] = owner
        self._names[number] = self._engine.add_request(str(number), inputs, parameters, priority=priority)

    def _start_scoring(self, number: int, state: ScoringState) -> None:
        try:
            self._add(number, state.prompt, state.parameters, priority=0, owner=state.owner)
        except Exception as error:
            self._ended.append((number, _refusal(error)))
        else:
            self._scores[number] = state


def _refusal(error: Exception) -> str:
    """Return why a request was refused: by whatever exception, it must not end the engine."""
    if isinstance(error, ReasonSpecError):
        return str(error)
    return " ".join(f"vLLM refused the request: {type(error).__name__}: {error}".split())


def _num_new(outputs: Sequence[Any]) -> int:
    """Return the number of tokens that a pass generated."""
    return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
