"""One request inside the worker: its text, the slots of what is computed, and what it drafts."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from reason_spec.engines.base import TIMES_IF_LIKELY, EngineRequest, GenerationResult, Hint, Score, Tokenizer
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.kv import PrefixTrie, TrieNode
from reason_spec.engines.torch.texts import Path, Places, SharedArray
from reason_spec.engines.worker.writer import WrittenTokens
from reason_spec.speculation.draft_calibration import HintRate
from reason_spec.speculation.drafters import HintDrafter, look_up
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import Demand
from reason_spec.speculation.tree import TokenTree
from reason_spec.suffix.base import Proposal
from reason_spec.types import FinishReason, Prefix, Usage

_arrivals = count()
_LIKELY = 0.5
"""Drafts with such a chance may go beyond the budget."""
_MOST = 1 << 10


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What there was to draft for a pass: a hint, and what earlier texts go on with behind it."""

    hinted: tuple[int, ...] = ()
    found: Proposal = field(default_factory=Proposal)


class Sequence:
    """What requests to write and to score have in common.

    ``tokens`` is all of the text; its first ``num_known`` were those of an earlier request.
    """

    def __init__(
        self, number: int, prefix: Prefix, trie: PrefixTrie, priority: int, places: Places | None
    ) -> None:
        self.number = number
        self.priority = priority
        self._arrival = next(_arrivals)
        self._prefix = prefix
        self._places = places or Places()
        found = next((place for node in prefix.nodes() if (place := self._places.find(node))), None)
        self.tokens = SharedArray() if found is None else found.tokens.beginning(len(found.tokens))
        self.num_known = len(self.tokens)
        self.tokens.extend(prefix.behind(self.num_known))
        self.num_prefix = len(prefix)
        self.owner = prefix.owner
        self.path = Path(trie, prefix.owner)
        # Nodes of the prefix that the path has still to come to, the last ones first.
        self._ahead: list[Prefix] = []
        self.group = -1
        self.cancelled = False
        self.error: str | None = None
        self._work: dict[str, Any] = {}
        self._was_suspended = False

    @property
    def usage(self) -> Usage:
        return Usage(**self._work)

    @property
    def order(self) -> tuple[int, int]:
        """By priority, then by arrival; a request that is suspended keeps its place."""
        return self.priority, self._arrival

    @property
    def num_pending(self) -> int:
        """Certain tokens whose keys and values are not computed yet."""
        return len(self.tokens) - len(self.path)

    @property
    def finished(self) -> bool:
        return self.cancelled or self.error is not None

    @property
    def ready(self) -> bool:
        """Whether it can run; False while something of it is prepared."""
        return True

    def count(self, **work: int) -> None:
        """Add to the counters of ``Usage`` by name."""
        for name, value in work.items():
            self._work[name] = self._work.get(name, 0) + value

    @property
    def first_predicting(self) -> int:
        """The place of the first token whose prediction is still needed."""
        return len(self.tokens) - 1

    @property
    def tip_is_a_beginning(self) -> bool:
        """Whether other requests may well begin behind the tip: in a prompt, or where a text ended."""
        return len(self.path) <= self.num_prefix or (self.finished and self.num_pending == 0)

    def follow_computed(self) -> None:
        """Take over what other requests have computed of this text.

        It ends before the first token whose prediction is needed: the keys and values of that one
        are of no use without the prediction.
        """
        before = len(self.path)
        if before == 0:
            self._begin()
        while True:
            limit = self.first_predicting
            if self._ahead:
                limit = min(limit, len(self._ahead[-1]))
            self.path.follow(self.tokens.values, limit)
            self._keep_places()
            if len(self.path) < limit or limit == self.first_predicting:
                break
        self._count_cached(before)

    def step_to(self, node: TrieNode) -> None:
        """Go on to a node of its text that is computed."""
        self.path.step_to(node)
        self._keep_places()

    def _begin(self) -> None:
        """Go to the last place of its prefix that is cached."""
        self._ahead = []
        for node in self._prefix.nodes():
            place = self._places.find(node)
            if place is not None and place.is_cached:
                self.path.begin_at(place, self.first_predicting)
                return
            if len(node):
                self._ahead.append(node)

    def _keep_places(self) -> None:
        while self._ahead and len(self._ahead[-1]) <= len(self.path):
            self._places.keep(self._ahead.pop(), self.path.place(self.tokens))

    def predicting_node(self) -> TrieNode | None:
        """Return the node of the first token whose prediction is needed, where it is next and computed."""
        if len(self.path) < self.first_predicting:
            return None
        return self.path.tip.children.get(self.tokens[self.first_predicting])

    def step_to_predicting(self, node: TrieNode) -> None:
        """Go on to ``predicting_node``; its prediction is at hand."""
        before = len(self.path)
        self.step_to(node)
        self._count_cached(before)

    def _count_cached(self, before: int) -> None:
        """Count the prompt tokens that the path has come along since it was ``before`` long."""
        cached = min(len(self.path), self.num_prefix) - min(before, self.num_prefix)
        if cached and not self._was_suspended:
            self.count(num_cached_prompt_tokens=cached)

    def suspend(self) -> None:
        """Hold nothing; what is computed stays cached while there is room, and is followed again."""
        self.path.release()
        self._was_suspended = True


class WritingSequence(Sequence):
    """A request to write."""

    def __init__(
        self,
        number: int,
        request: EngineRequest,
        trie: PrefixTrie,
        tokenizer: Tokenizer,
        max_context: int,
        earlier: EarlierTexts | None = None,
        choice: TokenChoice | None = None,
        hint_rate: HintRate | None = None,
        places: Places | None = None,
    ) -> None:
        super().__init__(number, request.prefix, trie, request.priority, places)
        self.request = request
        self.written = WrittenTokens(request, tokenizer, max_context - self.num_prefix)
        self.choice = choice or TokenChoice(request)
        self._hints: dict[int, HintDrafter] = {}
        self._earlier = earlier if request.text is not None else None
        self._hint_rate = HintRate(hint_rate)
        self._drafted = _Drafted()
        self._num_passes_by_accepted: list[int] = []
        self.count(num_prompt_tokens=self.num_prefix)

    @property
    def usage(self) -> Usage:
        return replace(super().usage, acceptance_histogram=tuple(self._num_passes_by_accepted))

    def count_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Count what one pass checked; without a draft it checked nothing."""
        if num_drafted:
            missing = num_accepted + 1 - len(self._num_passes_by_accepted)
            self._num_passes_by_accepted += [0] * missing
            self._num_passes_by_accepted[num_accepted] += 1
            self.count(num_drafted_tokens=num_drafted, num_accepted_draft_tokens=num_accepted)

    @property
    def finished(self) -> bool:
        return self.written.finish is not None or super().finished

    @property
    def ready(self) -> bool:
        ready = self.choice.ready
        self.error = self.error or self.choice.error
        return ready

    def offer_hint(self, hint: Hint) -> None:
        """Take a hint in the place of an earlier one with its index; those of all indices are followed."""
        if hint.index not in self._hints:
            self._hints[hint.index] = HintDrafter(generated=self.written.tokens)
        self._hints[hint.index].offer(hint.tokens, hint.start)

    @property
    def demand(self) -> Demand:
        """What it could draft for the next pass, hints and its own text taken together."""
        most = min(self.request.num_draft_tokens, self._room)
        if (hinted := max((len(hint.propose(_MOST)) for hint in self._hints.values()), default=0)) > 0:
            most = min(hinted, TIMES_IF_LIKELY * self.request.num_draft_tokens, self._room)
        elif self.request.token_drafter == "none":
            most = 0
        return Demand(self._hint_rate.chance(1), max(0, most))

    @property
    def reads_earlier(self) -> bool:
        """Whether drafts may come from earlier texts."""
        return self._earlier is not None

    def propose(self, least_chance: float = 0.0, limit: int | None = None) -> TokenTree:
        """Draft the next tokens: the hints first, then what followed in earlier texts, then in this one.

        Of a text under a constraint, what breaks it is left out.

        Args:
            least_chance: how likely a token of a hint must be to be worth its time. What earlier texts
                propose is not judged by it: how fast the engine is tells of others' texts too.
            limit: no more than so many tokens; None: as many as the request allows.
        """
        self._drafted = _Drafted()
        longest = min(self.request.num_draft_tokens, self._room)
        if longest < 1 or limit == 0:
            return TokenTree()
        drafts = self.choice.drafts(self._propose(longest, least_chance), longest)
        return drafts if limit is None else drafts.first(limit)

    def _propose(self, longest: int, least_chance: float) -> TokenTree:
        budget = self.request.num_draft_tokens
        paths = [path for hint in self._hints.values() if (path := hint.propose(TIMES_IF_LIKELY * budget))]
        if len(paths) < 2:
            hinted = self._worth_checking(paths[0], least_chance) if paths else []
            self._drafted = _Drafted(tuple(hinted))
            if self._earlier is not None:
                drafts = self._from_earlier(self._earlier, hinted)
                if drafts:
                    return drafts
            paths = [hinted] if hinted else []
            longest = max(longest, len(hinted))
        if not paths and self.request.token_drafter == "prompt_lookup":
            paths = look_up(self.tokens.values, longest, self.request.num_lookup_paths)
        return TokenTree.merge([path[:longest] for path in paths], max(budget, longest))

    @property
    def _room(self) -> int:
        return self.written.max_tokens - len(self.written.tokens) - 1

    def _worth_checking(self, hinted: list[int], least_chance: float) -> list[int]:
        """Return the part of a hint that is likely enough, by how often hints were right."""
        length = min(len(hinted), self._room)
        rate = self._hint_rate
        while length > self.request.num_draft_tokens and rate.chance(length) < _LIKELY:
            length -= 1
        while length > 1 and rate.chance(length) < least_chance:
            length -= 1
        return hinted[:length]

    def _from_earlier(self, earlier: EarlierTexts, hinted: list[int]) -> TokenTree:
        """Return what earlier texts go on with, behind the hint where there is one.

        What is likely goes beyond the budget: to check such a token costs less than a pass of its own.
        """
        if hinted and self.written.ends_behind(hinted) is not None:
            return TokenTree()
        text = self.request.text
        assert text is not None
        if (calibration := earlier.calibration(text)) is None:
            return TokenTree()
        budget = self.request.num_draft_tokens
        room = min(TIMES_IF_LIKELY * budget, self._room) - len(hinted)
        final = self.request.boundary is None
        found = earlier.propose(text, self.tokens.values, room, tree=True, final=final, drafted=hinted)
        before = self._hint_rate.chance(len(hinted))
        worth: list[float] = []
        for chance, parent in zip(found.chances, found.parents, strict=True):
            worth.append(min(before * calibration.corrected(chance), worth[parent] if parent >= 0 else 1.0))
        by_worth = sorted(range(len(worth)), key=lambda node: (-worth[node], node))
        num_any = max(0, min(budget, self._room) - len(hinted))
        kept = sorted(node for rank, node in enumerate(by_worth) if rank < num_any or worth[node] >= _LIKELY)
        drafts = TokenTree(found.tokens, found.parents).restricted(kept).behind(hinted)
        self._drafted = _Drafted(tuple(hinted), found)
        return drafts.pruned(self.written.ends_behind)

    def learn(self, certain: SequenceOf[int]) -> None:
        """Take what the pass made certain: how likely such drafts were counts for later ones."""
        hinted, found = self._drafted.hinted, self._drafted.found
        self._hint_rate.learn(hinted, certain)
        if self._earlier is None or not found.tokens or tuple(certain[: len(hinted)]) != hinted:
            return
        assert self.request.text is not None
        if (calibration := self._earlier.calibration(self.request.text)) is not None:
            calibration.learn(found, certain[len(hinted) :])

    def write(self, tokens: SequenceOf[int], logprobs: SequenceOf[float]) -> int:
        """Append certain tokens up to the end of the generation; return how many were kept."""
        before = len(self.written.tokens)
        self.written.take(tokens, logprobs)
        kept = self.written.tokens[before:]
        self.tokens.extend(kept)
        for hint in self._hints.values():
            hint.extend(kept)
        self.count(num_generated_tokens=len(kept), num_discarded_tokens=len(tokens) - len(kept))
        return len(kept)

    def result(self) -> GenerationResult:
        """Return the result; the path must be released by now."""
        finish: FinishReason = self.written.finish or "cancelled"
        return self.written.result("failed" if self.error is not None else finish, self.usage, self.error)


class ScoringSequence(Sequence):
    """A request to score a continuation: its predictions are read while it is prefilled."""

    def __init__(
        self,
        number: int,
        prefix: Prefix,
        continuation: SequenceOf[int],
        trie: PrefixTrie,
        places: Places | None = None,
    ) -> None:
        super().__init__(number, prefix, trie, priority=0, places=places)
        self.tokens.extend(self._behind_prefix(continuation))
        self.continuation = tuple(continuation)
        self.logprobs: list[float] = []
        self._best: list[int] = []
        self.count(num_prompt_tokens=len(prefix))

    @property
    def finished(self) -> bool:
        return len(self.logprobs) == len(self.continuation) or super().finished

    @property
    def first_predicting(self) -> int:
        return self.num_prefix - 1 + len(self.logprobs)

    @staticmethod
    def _behind_prefix(continuation: SequenceOf[int]) -> SequenceOf[int]:
        """Return the tokens of a continuation that are run: the last one is only predicted."""
        return continuation[:-1]

    def take(self, logprobs: SequenceOf[float], best: SequenceOf[int]) -> None:
        self.logprobs.extend(logprobs)
        self._best.extend(best)
        self.count(num_scored_tokens=len(best))

    def result(self) -> Score:
        return Score(tuple(self.logprobs), tuple(self._best), self.usage)


class ChoiceSequence(ScoringSequence):
    """Scores several candidates for the next token from one prediction; none of them is run."""

    @staticmethod
    def _behind_prefix(continuation: SequenceOf[int]) -> SequenceOf[int]:  # noqa: ARG004
        return ()
