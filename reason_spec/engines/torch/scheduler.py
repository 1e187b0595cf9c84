"""The step loop of one model: admit, plan, run, accept, retire."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.constraints import BackgroundCompiler
from reason_spec.engines.generation import EngineRequest, Hint
from reason_spec.engines.limits import Limits
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.torch.acceptor import Acceptor
from reason_spec.engines.torch.admission import SequenceAdmission
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.judge import TokenJudge
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import PassBuilder, PassLayout
from reason_spec.engines.torch.pass_plan import PassPlanner, ScheduledSequence
from reason_spec.engines.torch.predictions import Predictions
from reason_spec.engines.torch.sequence import ChoiceSequence, ScoringSequence, Sequence
from reason_spec.engines.torch.sequence_drafter import DraftRates
from reason_spec.engines.torch.texts import CachedPrefixes
from reason_spec.engines.torch.token_drafts import DraftModel, TokenDrafts
from reason_spec.engines.worker.loop import Result, StepReport
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.draft_calibration import entry_of
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.recycling import MAX_SIBLING_TABLES, RecycledTokens, sibling_table
from reason_spec.types import Prefix, Usage

_MAX_SCORE_LOGITS = 1 << 24
"""The most logits of a pass that a score reads: 64 MB in float32."""
_MAX_DRAFT_LOGITS = 1 << 26
"""The most logits of the draft tokens of a pass: 256 MB in float32, beside those in the model's dtype."""
_MAX_RECYCLING_SCOPES = 64
"""Scopes whose recycled predictions are kept, up to 33 MB each (`stand`: 55 MB) and 0.9 kB for each token
beyond `MAX_CONTEXTS`; their rates are kept longer."""
_COMPILING_SECONDS = 0.005
"""How long a step waits for a constraint. Cancellations take effect after it."""


class Runner(Protocol):
    """The model: runs passes."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    def run(self, layout: PassLayout) -> Tensor:
        """Return logits [entries with logits, vocabulary]."""


class Scheduler:
    """Owns all requests and slots of one model. Not thread-safe: the worker's loop drives it.

    Args:
        num_slots: tokens whose keys and values are stored.
        max_running: the most requests of a pass.
        prefill_chunk: the most prompt tokens of a pass, over all requests.
        kept_prediction_bytes: memory for predictions that later requests begin from.
        earlier: earlier texts to draft from; None for none.
        constraints: compiles constraints; None if no request has one.
        draft_model: drafts tokens for requests with ``model_drafts``.
        judge: the output layer of the model, which judges draft tokens; None for requests that need none.
        pass_times: of this engine; None: measured from its first pass on.
        debug: check the integrity of the slots after each step.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        num_slots: int,
        max_running: int = 64,
        prefill_chunk: int = 512,
        kept_prediction_bytes: int = 1 << 26,
        earlier: EarlierTexts | None = None,
        constraints: BackgroundCompiler | None = None,
        draft_model: DraftModel | None = None,
        judge: TokenJudge | None = None,
        pass_times: PassTimes | None = None,
        debug: bool = False,
    ) -> None:
        assert runner.max_context <= num_slots, "a single text must fit into the slots"
        self._runner = runner
        self._tokenizer = tokenizer
        self._earlier = earlier
        self._constraints = constraints
        self._judge = judge
        self._debug = debug
        self._limits = Limits(runner.max_context, runner.vocab_size, "max_context, at most cache_tokens")
        self._trie = PrefixTrie(num_slots)
        self._cached = CachedPrefixes()
        self.pass_times = pass_times or PassTimes()
        self._admission = SequenceAdmission(self._trie, max_running)
        score_chunk = min(prefill_chunk, max(16, _MAX_SCORE_LOGITS // runner.vocab_size))
        max_drafts = _MAX_DRAFT_LOGITS // runner.vocab_size
        self._planner = PassPlanner(self._admission, self.pass_times, prefill_chunk, score_chunk, max_drafts)
        self._builder = PassBuilder()
        self._acceptor = Acceptor(self._trie, kept_prediction_bytes)
        self._drafts: TokenDrafts | None = None
        if draft_model is not None:
            self._drafts = TokenDrafts(draft_model, self._trie, self.pass_times)
        self._sequences: dict[int, Sequence] = {}
        # Rates for each tenant and scope: the texts of one must not affect the drafts of another.
        self._draft_rates: dict[tuple[str, str], DraftRates] = {}
        # By tenant and name of the samples.
        self._siblings: dict[tuple[str, str], RecycledTokens] = {}
        self._retired_usage = Usage()
        self.num_tokens_run = 0

    # --- requests ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def submit(self, number: int, request: EngineRequest) -> None:
        compiling = None
        if request.constraint is not None:
            assert self._constraints is not None, "the scheduler was made without a compiler of constraints"
            compiling = self._constraints.start(request.constraint)
        sequence = GenerationSequence(
            number,
            request,
            self._trie,
            self._tokenizer,
            self._runner.max_context,
            self._earlier,
            TokenChoice(request, compiling),
            self._rates_of(request),
            self._cached,
            self._siblings_of(request),
        )
        sequence.drafter.offer_hint(Hint(self._limits.known_tokens(request.hint)))
        self._enqueue(sequence, num_needed=1)

    def score(
        self, number: int, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool = False
    ) -> None:
        kind = ChoiceSequence if alternatives else ScoringSequence
        sequence = kind(number, prefix, continuation, self._trie, self._cached)
        self._enqueue(sequence, num_needed=1 if continuation else 0)

    def cancel(self, number: int) -> None:
        if (sequence := self._sequences.get(number)) is not None:
            sequence.cancelled = True

    def cancel_all(self) -> None:
        for sequence in self._sequences.values():
            sequence.cancelled = True

    def offer_hint(self, number: int, hint: Hint) -> None:
        sequence = self._sequences.get(number)
        if isinstance(sequence, GenerationSequence):
            sequence.drafter.offer_hint(replace(hint, tokens=self._limits.known_tokens(hint.tokens)))

    def set_priority(self, number: int, priority: int) -> None:
        if (sequence := self._sequences.get(number)) is not None:
            sequence.priority = priority

    def reset_prefix_cache(self) -> None:
        self._trie.clear()
        self._cached.clear()
        self._acceptor.clear()

    def evict_first(self, owner: str, tokens: tuple[int, ...]) -> None:
        self._trie.evict_first(owner, tokens)

    def forget_prefixes(self) -> None:
        """Let no later request begin from what was computed so far; live ones continue from it."""
        self._trie.forget()
        # Live requests continue to store their prefixes in the old one.
        self._cached = CachedPrefixes()
        self._acceptor.clear()

    def set_num_threads(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._admission.running),
            num_waiting=len(self._admission.waiting),
            num_cached_tokens=self._trie.num_nodes,
            num_passes=self.pass_times.num_passes,
            busy_seconds=self.pass_times.busy_seconds,
            usage=sum((sequence.usage for sequence in self._sequences.values()), self._retired_usage),
            draft_token_seconds=0.0 if self._drafts is None else self._drafts.seconds_per_token,
        )

    def check_integrity(self) -> None:
        """Assert that slots and holds add up; call it between steps."""
        self._trie.check_integrity(sequence.path.tip for sequence in self._sequences.values())

    # --- the loop ----------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Run one pass over the running requests, with the work before and after it."""
        report = StepReport()
        self._await_constraints()
        self._retire(report)
        self._admission.admit()
        self._acceptor.reuse(self._admission.running, report)
        self._retire(report)
        drafting = 0.0 if self._drafts is None else self._drafts.draft(self._admission.running)
        if scheduled := self._planner.plan(self._sequences.values()):
            layout = self._lay_out(scheduled)
            num_before = _num_tokens(scheduled)
            started = time.perf_counter()
            predictions = self._run(layout)
            seconds = time.perf_counter() - started
            self._acceptor.accept(scheduled, layout, predictions, report)
            num_new = _num_tokens(scheduled) - num_before
            self._record_time(scheduled, layout, num_new, seconds, drafting)
            self._retire(report)
        if self._debug:
            self.check_integrity()
        return report

    def _enqueue(self, sequence: Sequence, num_needed: int) -> None:
        self._sequences[sequence.number] = sequence
        sequence.error = self._refusal(sequence, num_needed)
        if not sequence.finished:
            self._admission.waiting.add(sequence)

    def _rates_of(self, request: EngineRequest) -> DraftRates:
        def make() -> DraftRates:
            return DraftRates(self._runner.vocab_size)

        rates = entry_of(self._draft_rates, request.cache_key, make)
        last = _MAX_RECYCLING_SCOPES
        for left_out in islice(reversed(self._draft_rates.values()), last, last + 1):
            left_out.forget_predictions()
        return rates

    def _siblings_of(self, request: EngineRequest) -> RecycledTokens | None:
        if not request.siblings:
            return None
        key = request.cache_key[0], request.siblings
        make = partial(sibling_table, self._runner.vocab_size)
        return entry_of(self._siblings, key, make, most=MAX_SIBLING_TABLES)

    def _refusal(self, sequence: Sequence, num_needed: int) -> str | None:
        # The tokens before these were validated for an earlier request.
        tokens: list[int] = sequence.tokens.values[sequence.num_known :].tolist()
        if isinstance(sequence, ScoringSequence):
            tokens += sequence.continuation
        # Without a prefix the first token of a score has nothing to follow.
        num_text = len(sequence.tokens) if sequence.num_prefix else 0
        refusal = self._limits.refusal(tokens, num_text=num_text, num_needed=num_needed)
        if refusal is None and isinstance(sequence, GenerationSequence):
            return self._limits.bias_refusal(sequence.request.logit_bias)
        return refusal

    def _await_constraints(self) -> None:
        """If all requests wait for their constraints, leave the processor to the compiler for a moment."""
        live = self._sequences.values()
        if len(self._admission.running) or any(one.finished or one.ready for one in live):
            return
        generating = [sequence for sequence in live if isinstance(sequence, GenerationSequence)]
        futures = [one.choice.compiling for one in generating if one.choice.compiling is not None]
        if futures:
            wait(futures, _COMPILING_SECONDS, FIRST_COMPLETED)

    def _lay_out(self, scheduled: SequenceOf[ScheduledSequence]) -> PassLayout:
        slots = self._trie.take(sum(one.num_tokens for one in scheduled))
        assert slots is not None, "the plan took more slots than there are"
        layout = self._builder.build([chain for one in scheduled for chain in one.chains], slots)
        self._trie.give_back(slots[len(layout.tokens) :])
        return layout

    def _run(self, layout: PassLayout) -> Predictions:
        with torch.inference_mode():
            logits = self._runner.run(layout)
            judged = None if self._judge is None else self._judge.last(len(logits))
            return Predictions.of_pass(logits, layout.logits_entries, judged)

    def _record_time(
        self,
        scheduled: SequenceOf[ScheduledSequence],
        layout: PassLayout,
        num_new: int,
        seconds: float,
        drafting: float,
    ) -> None:
        num_tokens = len(layout.tokens)
        self.num_tokens_run += num_tokens
        self.pass_times.add(num_tokens, seconds)
        if all(one.num_text == 1 for one in scheduled):
            self.pass_times.add_generated(num_new, seconds + drafting)
            self.pass_times.add_batch(num_tokens, len(scheduled), seconds)

    def _retire(self, report: StepReport) -> None:
        """Free what finished requests hold, then report their results."""
        for sequence in [sequence for sequence in self._sequences.values() if sequence.finished]:
            self._admission.remove(sequence)
            sequence.path.discard()
            del self._sequences[sequence.number]
            self._retired_usage += sequence.usage
            report.results.append((sequence.number, _result_of(sequence)))


def _num_tokens(scheduled: SequenceOf[ScheduledSequence]) -> int:
    return sum(len(one.sequence.tokens) for one in scheduled)


def _result_of(sequence: Sequence) -> Result:
    if isinstance(sequence, GenerationSequence):
        return sequence.result()
    assert isinstance(sequence, ScoringSequence)
    if sequence.error is not None or len(sequence.logprobs) < len(sequence.continuation):
        return sequence.error or "the engine was closed"
    return sequence.result()
