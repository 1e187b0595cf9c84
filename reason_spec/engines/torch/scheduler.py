"""The step loop of one model: admit, draft, lay out, run, accept, deliver, retire."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from reason_spec.engines.base import TIMES_IF_LIKELY, EngineRequest, EngineStats, Hint, Tokenizer
from reason_spec.engines.constraints import BackgroundCompiler
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.groups import Groups
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain, PassBuilder, PassLayout
from reason_spec.engines.torch.predictions import KEPT_ENTRY, KeptPredictions, Predictions
from reason_spec.engines.torch.sequence import ChoiceSequence, ScoringSequence, Sequence, WritingSequence
from reason_spec.engines.torch.texts import Places
from reason_spec.engines.torch.work import Work
from reason_spec.engines.worker.limits import Limits
from reason_spec.engines.worker.loop import Result, StepReport
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.acceptance import accept
from reason_spec.speculation.draft_calibration import HintRate, entry_of
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import ASSUMED_RATE, draft_limits, uniform_limit
from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.types import Prefix, Usage

_MAX_SCORE_LOGITS = 1 << 24
"""Logits of one pass that a score may ask for: 64 MB in float32."""
_COMPILING_SECONDS = 0.005
"""How long a step waits for a constraint; what was cancelled meanwhile is seen behind it."""


class Runner(Protocol):
    """Runs passes: the model, seen from the scheduler."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    def run(self, layout: PassLayout) -> Tensor:
        """Return logits [entries with logits, vocabulary]."""


class Scheduler:
    """Owns all requests and slots of one model. Not thread-safe: the worker's loop drives it.

    A pass gives each running request either a piece of its prompt or one certain token with its
    drafts. ``prefill_chunk`` bounds the prompt tokens of a pass over all requests. Where slots run
    out, the requests that come last by priority and arrival go back to waiting; their keys and values
    stay cached as long as there is room, so they go on from there.

    The predictions behind prompts and behind finished texts are kept too, at most
    ``kept_prediction_bytes`` of them: a request that begins there chooses its first token from them
    and runs nothing.
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
        debug: bool = False,
    ) -> None:
        assert runner.max_context <= num_slots, "a single text must fit into the slots"
        self._runner = runner
        self._tokenizer = tokenizer
        self._limits = Limits(runner.max_context, runner.vocab_size, "max_context, at most cache_tokens")
        self._trie = PrefixTrie(num_slots)
        self._places = Places()
        self._kept = KeptPredictions(kept_prediction_bytes)
        self._max_running = max_running
        self._prefill_chunk = prefill_chunk
        self._score_chunk = min(prefill_chunk, max(16, _MAX_SCORE_LOGITS // runner.vocab_size))
        self._earlier = earlier
        self._constraints = constraints
        self._debug = debug
        self._builder = PassBuilder()
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._rejected: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._groups = Groups()
        self._retired_usage = Usage()
        # What one tenant's texts are like, or one of several that are compared, must not tell of others.
        self._hint_rates: dict[tuple[str, str], HintRate] = {}
        self.pass_times = PassTimes()
        self.num_tokens_run = 0

    # --- requests come in ------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._rejected)

    def submit(self, number: int, request: EngineRequest) -> None:
        compiling = None
        if request.constraint is not None:
            assert self._constraints is not None, "nothing was given that compiles constraints"
            compiling = self._constraints.start(request.constraint)
        choice = TokenChoice(request, compiling)
        sequence = WritingSequence(
            number,
            request,
            self._trie,
            self._tokenizer,
            self._runner.max_context,
            self._earlier,
            choice,
            entry_of(self._hint_rates, request.cache_key, HintRate),
            self._places,
        )
        sequence.offer_hint(Hint(self._limits.known_tokens(request.hint)))
        self._accept_request(sequence, num_needed=1)

    def score(
        self, number: int, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool = False
    ) -> None:
        kind = ChoiceSequence if alternatives else ScoringSequence
        sequence = kind(number, prefix, continuation, self._trie, self._places)
        self._accept_request(sequence, num_needed=1 if continuation else 0)

    def cancel(self, number: int) -> None:
        if (sequence := self._sequences.get(number)) is not None:
            sequence.cancelled = True

    def cancel_all(self) -> None:
        for sequence in self._sequences.values():
            sequence.cancelled = True

    def offer_hint(self, number: int, hint: Hint) -> None:
        sequence = self._sequences.get(number)
        if isinstance(sequence, WritingSequence):
            sequence.offer_hint(replace(hint, tokens=self._limits.known_tokens(hint.tokens)))

    def set_priority(self, number: int, priority: int) -> None:
        if (sequence := self._sequences.get(number)) is not None:
            sequence.priority = priority
            self._running.sort(key=lambda sequence: sequence.order)

    def reset_prefix_cache(self) -> None:
        self._trie.clear()
        self._places.clear()
        self._kept.clear()

    def set_num_threads(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)

    def stats(self) -> EngineStats:
        usage = self._retired_usage
        for sequence in self._sequences.values():
            usage += sequence.usage
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_cached_tokens=self._trie.num_nodes,
            num_passes=self.pass_times.num_passes,
            busy_seconds=self.pass_times.busy_seconds,
            usage=usage,
        )

    # --- the loop ----------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Do one pass, with what comes before and after it."""
        report = StepReport()
        self._await_constraints()
        self._retire(report)
        self._admit()
        self._take_over(report)
        self._retire(report)
        works = self._plan()
        if works:
            layout = self._lay_out(works)
            predictions = self._run(layout)
            self._accept(works, layout, predictions, report)
            self._retire(report)
        if self._debug:
            self.check_integrity()
        return report

    def check_integrity(self) -> None:
        """Assert that slots and holds add up; call it between steps."""
        self._trie.check_integrity(sequence.path.tip for sequence in self._sequences.values())

    # --- admit -------------------------------------------------------------------------------------

    def _accept_request(self, sequence: Sequence, num_needed: int) -> None:
        self._sequences[sequence.number] = sequence
        sequence.error = self._refusal(sequence, num_needed)
        (self._rejected if sequence.finished else self._waiting).append(sequence)

    def _refusal(self, sequence: Sequence, num_needed: int) -> str | None:
        # Those before are the model's: they were run.
        tokens: list[int] = sequence.tokens.values[sequence.num_known :].tolist()
        if isinstance(sequence, ScoringSequence):
            tokens += sequence.continuation
        # A score without a prefix has nothing that its first token could follow.
        num_text = len(sequence.tokens) if sequence.num_prefix else 0
        refusal = self._limits.refusal(tokens, num_text=num_text, num_needed=num_needed)
        if refusal is None and isinstance(sequence, WritingSequence):
            return self._limits.bias_refusal(sequence.request.logit_bias)
        return refusal

    def _await_constraints(self) -> None:
        """Where nothing runs, and all that waits is being compiled, give that the processor for a moment."""
        if self._running or self._rejected or any(sequence.ready for sequence in self._waiting):
            return
        writing = [s for s in self._waiting if isinstance(s, WritingSequence) and not s.finished]
        futures = [s.choice.compiling for s in writing if s.choice.compiling is not None]
        if futures:
            wait(futures, _COMPILING_SECONDS, FIRST_COMPLETED)

    def _admit(self) -> None:
        """Let waiting requests run, the most urgent first, while there is a place for them."""
        self._waiting.sort(key=lambda sequence: sequence.order)
        while True:
            candidate = next((s for s in self._waiting if s.ready and not s.finished), None)
            if candidate is None:
                return
            if len(self._running) >= self._max_running:
                last = max(self._running, key=lambda sequence: sequence.order)
                if candidate.priority >= last.priority:
                    return
                self._suspend(last)
            if not self._has_room_for(candidate):
                return
            self._waiting.remove(candidate)
            self._groups.join(candidate)
            self._running.append(candidate)
            self._running.sort(key=lambda sequence: sequence.order)

    def _has_room_for(self, candidate: Sequence) -> bool:
        """Return whether its text fits beside those that run, without anything cached counted."""
        held = sum(len(sequence.tokens) for sequence in self._running)
        return not self._running or held + len(candidate.tokens) <= self._trie.num_slots

    def _suspend(self, sequence: Sequence) -> None:
        """Send a running request back to waiting; its keys and values stay as cache."""
        self._running.remove(sequence)
        self._groups.leave(sequence)
        sequence.suspend()
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda sequence: sequence.order)

    # --- take over what is computed ----------------------------------------------------------------

    def _take_over(self, report: StepReport) -> None:
        """Let running requests go on along what is computed already, for them or for others."""
        for sequence in self._running:
            sequence.follow_computed()
            while not sequence.finished and (node := sequence.predicting_node()) is not None:
                kept = self._kept.find(node.key)
                if kept is None:
                    break
                sequence.step_to_predicting(node)
                if isinstance(sequence, WritingSequence):
                    self._write_from_kept(sequence, kept, report)
                elif isinstance(sequence, ScoringSequence):
                    self._take_scores(sequence, [KEPT_ENTRY], kept)

    def _write_from_kept(self, sequence: WritingSequence, kept: Predictions, report: StepReport) -> None:
        """Append one token; no pass checks a draft of it, but how often hints are right is learnt."""
        sequence.propose()
        self._write(sequence, TokenTree(), {ROOT: KEPT_ENTRY}, kept, report)

    # --- draft -------------------------------------------------------------------------------------

    def _plan(self) -> list[Work]:
        """Decide what each running request does in this pass, the most urgent first.

        Certain tokens come first: each request gets slots for its own before any gets slots for
        drafts. Slots of a request that is suspended on the way serve those before it.
        """
        prefill_left = self._prefill_chunk
        works: list[Work] = []
        num_slots = 0
        for sequence in list(self._running):
            if sequence not in self._running:
                continue
            allowed = 1 if sequence.num_pending == 1 else prefill_left
            if isinstance(sequence, ScoringSequence):
                allowed = min(prefill_left, self._score_chunk)
            num_certain = min(sequence.num_pending, allowed)
            if num_certain == 0:
                continue
            if not self._reserve(num_slots + num_certain, sequence):
                break
            num_slots += num_certain
            if sequence.num_pending > 1 or isinstance(sequence, ScoringSequence):
                prefill_left -= num_certain
            works.append(self._certain_work(sequence, num_certain))
        for work, limit in zip(works, self._draft_limits(works), strict=True):
            num_slots += self._add_drafts(work, num_slots, limit)
        return works

    def _draft_limits(self, works: SequenceOf[Work]) -> list[int | None]:
        """Return how many drafts are best for all together; None for those that ask for no limit."""
        limits: list[int | None] = [None] * len(works)
        writing = [
            (place, work.sequence)
            for place, work in enumerate(works)
            if isinstance(work.sequence, WritingSequence) and work.completes_text
        ]
        if len(writing) < 2 or not any(sequence.request.limit_drafts for _, sequence in writing):
            return limits
        time = self.pass_times.batch_time
        worth = draft_limits([sequence.demand for _, sequence in writing], time)
        for (place, sequence), limit in zip(writing, worth, strict=True):
            if sequence.request.limit_drafts and sequence.reads_earlier:
                # What a tenant is offered may depend on how many others there are, not on what they write.
                most = TIMES_IF_LIKELY * sequence.request.num_draft_tokens
                limits[place] = uniform_limit(len(writing), most, ASSUMED_RATE, time)
            elif sequence.request.limit_drafts:
                limits[place] = limit
        return limits

    def _certain_work(self, sequence: Sequence, num_certain: int) -> Work:
        start = len(sequence.path)
        end = start + num_certain
        chain = Chain(
            tokens=sequence.tokens.values[start:end].tolist(),
            context=sequence.path.slots,
            in_order=sequence.path.in_order,
            prefix_key=sequence.path.tip.key,
            num_logits=max(0, end - max(start, self._first_needed(sequence))),
            group=sequence.group,
            shared_context=min(start, self._groups.num_shared_by(sequence)),
        )
        return Work(sequence, num_certain, end == len(sequence.tokens), [chain])

    def _first_needed(self, sequence: Sequence) -> int:
        """Return the place of the first token whose prediction is needed, by this request or another.

        A request that is still writing what this one has as its prompt will come along here; the
        tokens would be run a second time for it.
        """
        first = sequence.first_predicting
        if isinstance(sequence, ScoringSequence) or sequence.num_pending == 1:
            return first
        for other in self._sequences.values():
            length = len(other.tokens)
            near = 0 < len(sequence.tokens) - length <= self._score_chunk
            writes = near and isinstance(other, WritingSequence)
            if writes and sequence.tokens.num_shared(other.tokens) == length:
                first = min(first, length - 1)
        return first

    def _reserve(self, num_slots: int, sequence: Sequence) -> bool:
        """Make room for a request's certain tokens; False where it has to wait itself."""
        while not self._can_take(num_slots):
            last = self._running[-1]
            self._suspend(last)
            if last is sequence:
                return False
        return True

    def _can_take(self, num_slots: int) -> bool:
        slots = self._trie.take(num_slots)
        if slots is None:
            return False
        self._trie.give_back(slots)
        return True

    def _add_drafts(self, work: Work, num_slots: int, limit: int | None) -> int:
        """Append drafts, up to ``limit``, to a request with only its last token to run; return how many."""
        sequence = work.sequence
        if not isinstance(sequence, WritingSequence) or not work.completes_text:
            return 0
        drafts = sequence.propose(self.pass_times.least_chance, limit)
        while drafts and not self._can_take(num_slots + len(drafts)):
            drafts = drafts.first(len(drafts) - 1)
        if drafts:
            work.add_drafts(drafts)
        return len(drafts)

    # --- lay out and run ---------------------------------------------------------------------------

    def _lay_out(self, works: list[Work]) -> PassLayout:
        slots = self._trie.take(sum(work.num_tokens for work in works))
        assert slots is not None, "the plan took more slots than there are"
        layout = self._builder.build([chain for work in works for chain in work.chains], slots)
        self._trie.give_back(slots[len(layout.tokens) :])
        return layout

    def _run(self, layout: PassLayout) -> Predictions:
        started = time.perf_counter()
        with torch.inference_mode():
            predictions = Predictions.of_pass(self._runner.run(layout), layout.logits_entries)
        self._pass_seconds = time.perf_counter() - started
        self.pass_times.add(len(layout.tokens), self._pass_seconds)
        self.num_tokens_run += len(layout.tokens)
        return predictions

    # --- accept and deliver ------------------------------------------------------------------------

    def _accept(
        self, works: list[Work], layout: PassLayout, predictions: Predictions, report: StepReport
    ) -> None:
        """Turn predictions into certain tokens, and the slots of what is certain into nodes."""
        unclaimed = set(layout.slots)
        before = sum(len(work.sequence.tokens) for work in works)
        for work in works:
            sequence = work.sequence
            sequence.count(num_passes=1)
            wanted = work.wanted_entries
            if not predictions.valid(wanted):
                sequence.error = (
                    "the model's logits are not numbers (NaN or infinite); its weights are damaged or "
                    "overflow in this dtype: try dtype float32"
                )
                continue
            right = work.chains[0].entries[: work.num_certain]
            if isinstance(sequence, WritingSequence) and work.completes_text:
                entries = work.entry_behind()
                accepted = self._write(sequence, work.drafts, entries, predictions, report)
                right = [*right, *(entries[node] for node in accepted)]
            elif isinstance(sequence, ScoringSequence) and wanted:
                self._take_scores(sequence, wanted, predictions)
            self._keep(sequence, right, layout, predictions, unclaimed)
        self._trie.give_back(unclaimed)
        if all(work.num_certain == 1 for work in works):
            written = sum(len(work.sequence.tokens) for work in works) - before
            self.pass_times.add_written(written, self._pass_seconds)
            self.pass_times.add_batch(len(layout.tokens), len(works), self._pass_seconds)

    def _write(
        self,
        sequence: WritingSequence,
        drafts: TokenTree,
        entries: dict[int, int],
        predictions: Predictions,
        report: StepReport,
    ) -> list[int]:
        """Append what the predictions make certain; return the drafted nodes that stay in the text."""
        position = len(sequence.tokens)

        def choose(node: int, depth: int) -> int:
            return sequence.choice.choose(predictions, entries[node], position + depth)

        certain, nodes = accept(drafts, choose)
        if sequence.choice.error is not None:
            sequence.error = sequence.choice.error
            return []
        logprobs = predictions.logprobs([entries[node] for node in (ROOT, *nodes)], certain)
        sequence.learn(certain)
        kept = sequence.write(certain, logprobs)
        nodes = nodes[:kept]
        parted = sequence.written.finish is None and drafts.has_children(nodes[-1] if nodes else ROOT)
        sequence.count_drafts(len(drafts), len(nodes))
        sequence.count(num_partings=int(parted))
        if (delta := sequence.written.take_delta()) is not None:
            report.deltas.append((sequence.number, delta))
        return nodes

    @staticmethod
    def _take_scores(sequence: ScoringSequence, entries: list[int], predictions: Predictions) -> None:
        best = [predictions.best(entry) for entry in entries]
        if isinstance(sequence, ChoiceSequence):
            (entry,) = entries
            choices = list(sequence.continuation)
            sequence.take(predictions.logprobs([entry] * len(choices), choices), best)
            return
        start = len(sequence.logprobs)
        scored = list(sequence.continuation[start : start + len(entries)])
        sequence.take(predictions.logprobs(entries, scored), best)

    def _keep(
        self,
        sequence: Sequence,
        right: SequenceOf[int],
        layout: PassLayout,
        predictions: Predictions,
        unclaimed: set[int],
    ) -> None:
        """Make nodes of the entries that are in the text, and keep predictions others may begin from."""
        for entry in right:
            slot = layout.slots[entry]
            child = self._trie.extend(sequence.path.tip, layout.tokens[entry], slot)
            if child.slot == slot:
                unclaimed.discard(slot)
            sequence.step_to(child)
            if entry in predictions and sequence.tip_is_a_beginning:
                self._kept.keep(child.key, predictions.only(entry))

    # --- retire ------------------------------------------------------------------------------------

    def _retire(self, report: StepReport) -> None:
        """Free what finished requests held, then report their ends."""
        for sequence in [s for s in self._sequences.values() if s.finished]:
            if sequence in self._running:
                self._running.remove(sequence)
                self._groups.leave(sequence)
            elif sequence in self._waiting:
                self._waiting.remove(sequence)
            else:
                self._rejected.remove(sequence)
            sequence.path.discard()
            del self._sequences[sequence.number]
            self._retired_usage += sequence.usage
            report.results.append((sequence.number, self._result_of(sequence)))

    @staticmethod
    def _result_of(sequence: Sequence) -> Result:
        if isinstance(sequence, WritingSequence):
            return sequence.result()
        assert isinstance(sequence, ScoringSequence)
        if sequence.error is not None or len(sequence.logprobs) < len(sequence.continuation):
            return sequence.error or "the engine was closed"
        return sequence.result()
