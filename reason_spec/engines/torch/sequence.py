"""One request inside the worker: its text, and the slots of its computed tokens."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import count
from typing import Any

from reason_spec.engines.generation import Score
from reason_spec.engines.torch.kv import PrefixTrie, TrieNode
from reason_spec.engines.torch.texts import CachedPrefixes, Path, SharedArray
from reason_spec.types import Prefix, Usage

_arrivals = count()


class Sequence:
    """A request to generate or to score.

    ``tokens`` is the whole text; its first ``num_known`` tokens were validated for an earlier request.
    """

    def __init__(
        self, number: int, prefix: Prefix, trie: PrefixTrie, priority: int, cached: CachedPrefixes | None
    ) -> None:
        self.number = number
        self.priority = priority
        self._arrival = next(_arrivals)
        self._prefix = prefix
        self._cached = cached or CachedPrefixes()
        found = next((found for node in prefix.nodes() if (found := self._cached.find(node))), None)
        self.tokens = SharedArray() if found is None else found.tokens.beginning(len(found.tokens))
        self.num_known = len(self.tokens)
        self.tokens.extend(prefix.tokens_after(self.num_known))
        self.num_prefix = len(prefix)
        self.path = Path(trie, prefix.owner)
        # Nodes of the prefix that the path has not reached yet, the last one first.
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
        """Priority, then arrival; a suspended sequence keeps its place."""
        return self.priority, self._arrival

    @property
    def num_pending(self) -> int:
        """Tokens of the text whose keys and values are not computed yet."""
        return len(self.tokens) - len(self.path)

    @property
    def finished(self) -> bool:
        return self.cancelled or self.error is not None

    @property
    def ready(self) -> bool:
        """Whether the sequence can run; False while its constraint is compiled."""
        return True

    def count(self, **work: int) -> None:
        """Add to the counters of ``Usage`` by name."""
        for name, value in work.items():
            self._work[name] = self._work.get(name, 0) + value

    @property
    def first_predicting(self) -> int:
        """The index of the first token whose prediction is still needed."""
        return len(self.tokens) - 1

    @property
    def tip_is_a_beginning(self) -> bool:
        """Whether later requests are likely to begin at the tip: in a prompt, or where a text ended."""
        return len(self.path) <= self.num_prefix or (self.finished and self.num_pending == 0)

    def follow_computed(self) -> None:
        """Advance along nodes of this text that other requests have computed.

        Stops before the first token whose prediction is needed: its keys and values alone are not enough.
        """
        before = len(self.path)
        if before == 0:
            self._begin()
        while True:
            limit = self.first_predicting
            if self._ahead:
                limit = min(limit, len(self._ahead[-1]))
            self.path.follow(self.tokens.values, limit)
            self._keep_cached()
            if len(self.path) < limit or limit == self.first_predicting:
                break
        self._count_cached(before)

    def step_to(self, node: TrieNode) -> None:
        """Advance to a computed node of the text."""
        self.path.step_to(node)
        self._keep_cached()

    def _begin(self) -> None:
        """Go to the longest cached beginning of the prefix."""
        self._ahead = []
        for node in self._prefix.nodes():
            found = self._cached.find(node)
            if found is not None and found.is_cached:
                self.path.begin_at(found, self.first_predicting)
                return
            if len(node):
                self._ahead.append(node)

    def _keep_cached(self) -> None:
        while self._ahead and len(self._ahead[-1]) <= len(self.path):
            self._cached.keep(self._ahead.pop(), self.path.cached(self.tokens))

    def predicting_node(self) -> TrieNode | None:
        """Return the node of the first token whose prediction is needed, if it is next and computed."""
        if len(self.path) < self.first_predicting:
            return None
        return self.path.tip.children.get(self.tokens[self.first_predicting])

    def step_to_computed(self, node: TrieNode) -> None:
        """Advance to a node that another request computed; its token counts as cached."""
        before = len(self.path)
        self.step_to(node)
        self._count_cached(before)

    def _count_cached(self, before: int) -> None:
        """Count the cached prompt tokens of the path since it had ``before`` tokens."""
        cached = min(len(self.path), self.num_prefix) - min(before, self.num_prefix)
        if cached and not self._was_suspended:
            self.count(num_cached_prompt_tokens=cached)

    def suspend(self) -> None:
        """Release all slots; they stay cached while there is room, and are followed again."""
        self.path.release()
        self._was_suspended = True


class ScoringSequence(Sequence):
    """A request to score a continuation, whose predictions are read while it is prefilled."""

    def __init__(
        self,
        number: int,
        prefix: Prefix,
        continuation: SequenceOf[int],
        trie: PrefixTrie,
        cached: CachedPrefixes | None = None,
    ) -> None:
        super().__init__(number, prefix, trie, priority=0, cached=cached)
        self.tokens.extend(self._tokens_to_run(continuation))
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
    def _tokens_to_run(continuation: SequenceOf[int]) -> SequenceOf[int]:
        """Return the tokens of a continuation that are run: all but the last, which is only predicted."""
        return continuation[:-1]

    def take(self, logprobs: SequenceOf[float], best: SequenceOf[int]) -> None:
        self.logprobs.extend(logprobs)
        self._best.extend(best)
        self.count(num_scored_tokens=len(best))

    def result(self) -> Score:
        return Score(tuple(self.logprobs), tuple(self._best), self.usage)


class ChoiceSequence(ScoringSequence):
    """Scores candidates for the next token from one prediction; none of them is run."""

    @staticmethod
    def _tokens_to_run(continuation: SequenceOf[int]) -> SequenceOf[int]:  # noqa: ARG004
        return ()
