"""Plans a pass: which tokens of its text and which drafts each running sequence puts into it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from reason_spec.engines.generation import TIMES_IF_LIKELY
from reason_spec.engines.torch.admission import SequenceAdmission
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.layout import Chain
from reason_spec.engines.torch.sequence import ScoringSequence, Sequence
from reason_spec.engines.worker.pass_times import FULL_DRAFT_INTERVAL, PassTimes
from reason_spec.speculation.goodput import ASSUMED_RATE, draft_limits, uniform_limit
from reason_spec.speculation.tree import ROOT, TokenTree


@dataclass(slots=True)
class ScheduledSequence:
    """The tokens of one sequence in a pass: tokens of its text, then drafts.

    ``completes_text``: they include the last token of the text so far. ``chains`` are the paths through the
    drafts; each begins with the tokens of the text.
    """

    sequence: Sequence
    num_text: int
    completes_text: bool
    chains: list[Chain]
    drafts: TokenTree = field(default_factory=TokenTree)

    @property
    def num_tokens(self) -> int:
        return self.num_text + len(self.drafts)

    def add_drafts(self, drafts: TokenTree) -> None:
        (text,) = self.chains
        self.drafts = drafts
        self.chains = [
            replace(
                text,
                tokens=[*text.tokens, *(drafts.tokens[node] for node in path)],
                num_logits=text.num_logits + len(path),
                entries=[],
            )
            for path in drafts.paths()
        ]

    @property
    def logits_entries(self) -> list[int]:
        """The entries whose predictions the sequence needs."""
        wanted = [chain.entries[len(chain.entries) - chain.num_logits :] for chain in self.chains]
        return list(dict.fromkeys(entry for entries in wanted for entry in entries))

    def entry_of_nodes(self) -> dict[int, int]:
        """Return the entry of each drafted node, and for `ROOT` that of the last token of the text."""
        entries = {ROOT: self.chains[0].entries[self.num_text - 1]}
        if self.drafts:
            for path, chain in zip(self.drafts.paths(), self.chains, strict=True):
                entries.update(zip(path, chain.entries[self.num_text :], strict=True))
        return entries


class PassPlanner:
    """Gives each running sequence a piece of its prompt, or the last token of its text with drafts.

    Args:
        prefill_chunk: the most prompt tokens of a pass, over all sequences.
        score_chunk: the most tokens of a pass whose predictions one score reads.
        max_drafts: the most draft tokens of a pass, whose logits take memory; all sequences have equal parts.
    """

    def __init__(
        self,
        admission: SequenceAdmission,
        pass_times: PassTimes,
        prefill_chunk: int,
        score_chunk: int,
        max_drafts: int,
    ) -> None:
        self._admission = admission
        self._pass_times = pass_times
        self._prefill_chunk = prefill_chunk
        self._score_chunk = score_chunk
        self._max_drafts = max_drafts

    def plan(self, live: Iterable[Sequence]) -> list[ScheduledSequence]:
        """Return the tokens of the pass, the most urgent sequence first.

        Tokens of the texts get their slots before any drafts do. Slots of a sequence that is suspended on the
        way serve the more urgent ones.

        Args:
            live: all sequences, waiting ones too.
        """
        scheduled = self._text_tokens(live)
        num_slots = sum(one.num_text for one in scheduled)
        for one, limit in zip(scheduled, self._draft_limits(scheduled), strict=True):
            num_slots += self._add_drafts(one, num_slots, limit)
        return scheduled

    def _text_tokens(self, live: Iterable[Sequence]) -> list[ScheduledSequence]:
        prefill_left = self._prefill_chunk
        num_slots = 0
        scheduled: list[ScheduledSequence] = []
        for sequence in self._admission.running:
            if sequence not in self._admission.running:
                continue  # suspended for a more urgent one
            is_scoring = isinstance(sequence, ScoringSequence)
            allowed = 1 if sequence.num_pending == 1 else prefill_left
            if is_scoring:
                # Only from the first scored token on are there logits, which take the memory.
                unscored = max(0, sequence.first_predicting - len(sequence.path))
                allowed = min(prefill_left, unscored + self._score_chunk)
            num_text = min(sequence.num_pending, allowed)
            if num_text == 0:
                continue
            if not self._admission.reserve(num_slots + num_text, sequence):
                break
            num_slots += num_text
            if sequence.num_pending > 1 or is_scoring:
                prefill_left -= num_text
            scheduled.append(self._schedule(sequence, num_text, live))
        return scheduled

    def _schedule(self, sequence: Sequence, num_text: int, live: Iterable[Sequence]) -> ScheduledSequence:
        start = len(sequence.path)
        end = start + num_text
        chain = Chain(
            tokens=sequence.tokens.values[start:end].tolist(),
            context=sequence.path.slots,
            in_order=sequence.path.in_order,
            prefix_key=sequence.path.tip.key,
            num_logits=max(0, end - max(start, self._first_needed(sequence, live))),
            group=sequence.group,
            shared_context=min(start, self._admission.groups.num_shared_by(sequence)),
        )
        return ScheduledSequence(sequence, num_text, end == len(sequence.tokens), [chain])

    def _first_needed(self, sequence: Sequence, live: Iterable[Sequence]) -> int:
        """Return the place of the first token whose prediction this sequence or another one needs.

        The prompt of this sequence may be the text that another one is about to generate. Without the
        predictions the other one would run the same tokens again.
        """
        first = sequence.first_predicting
        if isinstance(sequence, ScoringSequence) or sequence.num_pending == 1:
            return first
        for other in live:
            length = len(other.tokens)
            is_near = 0 < len(sequence.tokens) - length <= self._score_chunk
            generates = is_near and isinstance(other, GenerationSequence)
            # Another owner's sequence has a tree of its own.
            is_own = other.path.root is sequence.path.root
            if generates and is_own and sequence.tokens.num_shared(other.tokens) == length:
                first = min(first, length - 1)
        return first

    def _draft_limits(self, scheduled: SequenceOf[ScheduledSequence]) -> list[int]:
        """Return the most drafts of each sequence: its part of a pass, less where throughput asks for it."""
        drafting = [
            (place, one.sequence)
            for place, one in enumerate(scheduled)
            if isinstance(one.sequence, GenerationSequence) and one.completes_text
        ]
        # By the number of requests alone: the drafts of one must not depend on the texts of others.
        limits = [max(1, self._max_drafts // max(1, len(drafting)))] * len(scheduled)
        if len(drafting) < 2 or not any(sequence.request.limit_drafts for _, sequence in drafting):
            return limits
        time = self._pass_times.batch_time
        best = draft_limits([sequence.drafter.demand for _, sequence in drafting], time)
        for (place, sequence), limit in zip(drafting, best, strict=True):
            if sequence.request.limit_drafts and sequence.drafter.reads_earlier:
                # A tenant's drafts may depend on the number of other requests, not on their texts.
                most = TIMES_IF_LIKELY * sequence.request.num_draft_tokens
                limits[place] = min(limits[place], uniform_limit(len(drafting), most, ASSUMED_RATE, time))
            elif sequence.request.limit_drafts:
                limits[place] = min(limits[place], limit)
        return limits

    def _add_drafts(self, scheduled: ScheduledSequence, num_slots: int, limit: int) -> int:
        """Append up to ``limit`` drafts to a sequence that completes its text; return their number."""
        sequence = scheduled.sequence
        if not isinstance(sequence, GenerationSequence) or not scheduled.completes_text:
            return 0
        is_full = self._pass_times.num_passes % FULL_DRAFT_INTERVAL == 0
        drafts = sequence.drafter.propose(0.0 if is_full else self._pass_times.least_chance, limit)
        while drafts and not self._admission.has_free(num_slots + len(drafts)):
            drafts = drafts.first(len(drafts) - 1)
        if drafts:
            scheduled.add_drafts(drafts)
        return len(drafts)
