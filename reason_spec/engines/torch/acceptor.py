"""Turns predictions into accepted tokens and scores, and computed slots into nodes of the trie."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import PassLayout
from reason_spec.engines.torch.pass_plan import ScheduledSequence
from reason_spec.engines.torch.predictions import KEPT_ENTRY, KeptPredictions, Predictions
from reason_spec.engines.torch.sequence import ChoiceSequence, ScoringSequence, Sequence
from reason_spec.engines.worker.loop import StepReport
from reason_spec.speculation.acceptance import accept
from reason_spec.speculation.recycling import WIDTH
from reason_spec.speculation.relaxed_acceptance import accept_relaxed
from reason_spec.speculation.tree import ROOT, TokenTree


class Acceptor:
    """Verifies drafts against predictions.

    The predictions after prompts and after finished texts are kept, up to ``kept_bytes``. A request that
    begins there chooses its first token from them without a pass.
    """

    def __init__(self, trie: PrefixTrie, kept_bytes: int) -> None:
        self._trie = trie
        self._kept = KeptPredictions(kept_bytes)

    def clear(self) -> None:
        self._kept.clear()

    def reuse(self, running: Iterable[Sequence], report: StepReport) -> None:
        """Advance sequences along tokens that are computed, and choose tokens from kept predictions."""
        for sequence in running:
            sequence.follow_computed()
            while not sequence.finished and (node := sequence.predicting_node()) is not None:
                kept = self._kept.find(node.key)
                if kept is None:
                    break
                sequence.step_to_computed(node)
                if isinstance(sequence, GenerationSequence):
                    # No pass verifies a draft here, but the acceptance rates are updated.
                    sequence.drafter.propose()
                    _accept_tokens(sequence, TokenTree(), {ROOT: KEPT_ENTRY}, kept, report)
                elif isinstance(sequence, ScoringSequence):
                    _take_scores(sequence, [KEPT_ENTRY], kept)

    def accept(
        self,
        scheduled: SequenceOf[ScheduledSequence],
        layout: PassLayout,
        predictions: Predictions,
        report: StepReport,
    ) -> None:
        """Advance the sequences of a pass by its predictions."""
        unclaimed = set(layout.slots)
        for one in scheduled:
            sequence = one.sequence
            sequence.count(num_passes=1)
            wanted = one.logits_entries
            if not predictions.valid(wanted):
                sequence.error = (
                    "the model's logits are not numbers (NaN or infinite); its weights are damaged or "
                    "overflow in this dtype: try dtype float32"
                )
                continue
            right = one.chains[0].entries[: one.num_text]
            if isinstance(sequence, GenerationSequence) and one.completes_text:
                entries = one.entry_of_nodes()
                accepted = _accept_tokens(sequence, one.drafts, entries, predictions, report)
                right = [*right, *(entries[node] for node in accepted)]
            elif isinstance(sequence, ScoringSequence) and wanted:
                _take_scores(sequence, wanted, predictions)
            unclaimed -= self._keep(sequence, right, layout, predictions)
        self._trie.give_back(unclaimed)

    def _keep(
        self, sequence: Sequence, right: SequenceOf[int], layout: PassLayout, predictions: Predictions
    ) -> set[int]:
        """Make nodes of the entries that are in the text; return the slots that belong to them now."""
        claimed: set[int] = set()
        for entry in right:
            slot, token = layout.slots[entry], layout.tokens[entry]
            is_known = token in sequence.path.tip.children
            child = self._trie.extend(sequence.path.tip, token, slot)
            if child.slot == slot:
                claimed.add(slot)
            if is_known and child.slot == slot:
                # Another request of this pass shares the entry, and counts its computation.
                sequence.step_to_computed(child)
            else:
                sequence.step_to(child)
            if entry in predictions and sequence.tip_is_a_beginning:
                self._kept.keep(child.key, predictions.only(entry))
        return claimed


def _accept_tokens(
    sequence: GenerationSequence,
    drafts: TokenTree,
    entries: dict[int, int],
    predictions: Predictions,
    report: StepReport,
) -> list[int]:
    """Append the accepted drafts and one token more; return the drafted nodes that stay in the text."""
    position = len(sequence.tokens)

    def choose(node: int, depth: int) -> int:
        return sequence.choice.choose(predictions, entries[node], position + depth)

    acceptance = sequence.choice.acceptance
    if acceptance.is_exact:
        tokens, nodes = accept(drafts, choose)
    else:
        tokens, nodes = accept_relaxed(
            drafts,
            choose,
            lambda node: sequence.choice.distribution(predictions, entries[node]),
            acceptance,
            greedy=sequence.request.sampling.greedy,
            judged=lambda node: predictions.judged(entries[node]),
            is_copied=lambda node: sequence.drafter.is_copied(drafts.path_to(node)),
        )
    if sequence.choice.error is not None:
        sequence.error = sequence.choice.error
        return []
    if sequence.drafter.recycles:
        _recycle(sequence, drafts, entries, predictions, nodes)
    if sequence.request.boundary is not None and not sequence.output.tokens:
        sequence.output.first_entropy = predictions.entropy(entries[ROOT])
    logprobs = predictions.logprobs([entries[node] for node in (ROOT, *nodes)], tokens)
    nodes = nodes[: sequence.extend(tokens, logprobs)]
    is_rejected = sequence.output.finish is None and drafts.has_children(nodes[-1] if nodes else ROOT)
    sequence.count_drafts(len(drafts), len(nodes), is_rejected=is_rejected)
    if (delta := sequence.output.take_delta()) is not None:
        report.deltas.append((sequence.number, delta))
    return nodes


def _recycle(
    sequence: GenerationSequence,
    drafts: TokenTree,
    entries: dict[int, int],
    predictions: Predictions,
    accepted: SequenceOf[int],
) -> None:
    """Keep what the pass predicts after the last token and after each draft, right or wrong."""
    nodes = [ROOT, *range(len(drafts))]
    seen = predictions.top_tokens([entries[node] for node in nodes], WIDTH)
    sequence.drafter.recycle(drafts, seen, accepted)


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
