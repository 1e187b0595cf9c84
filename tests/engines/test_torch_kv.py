"""The trie keeps its books under any order of use."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.texts import Path

NUM_SLOTS = 12


class TrieMachine(RuleBasedStateMachine):
    """Paths over a three-token alphabet grow, share, end and are evicted; a model follows.

    The texts of two owners share nothing: in the model each begins with its owner.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trie = PrefixTrie(NUM_SLOTS)
        self.paths: list[tuple[Path, list[int]]] = []
        self.owners: dict[int, str] = {}

    def held(self) -> set[tuple[str, tuple[int, ...]]]:
        """Return all prefixes of texts under way."""
        return {
            (self.owners[id(path)], tuple(text[:length]))
            for path, text in self.paths
            for length in range(1, len(text) + 1)
        }

    @rule(text=st.lists(st.integers(0, 2), max_size=6), owner=st.sampled_from(["", "ana"]))
    def begin(self, text: list[int], owner: str) -> None:
        path = Path(self.trie, owner)
        followed = path.follow(text, len(text))
        self.paths.append((path, text[:followed]))
        self.owners[id(path)] = owner

    @rule(which=st.integers(0, 50), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5),
          num_right=st.integers(0, 5))  # fmt: skip
    def compute(self, which: int, tokens: list[int], num_right: int) -> None:
        """A pass: slots for all tokens, nodes for those that turn out right."""
        if not self.paths:
            return
        path, text = self.paths[which % len(self.paths)]
        slots = self.trie.take(len(tokens))
        if slots is None:
            assert len(self.held()) + len(tokens) > NUM_SLOTS, "slots were refused though there was room"
            return
        assert len(set(slots)) == len(tokens)
        unclaimed = set(slots)
        for token, slot in zip(tokens[:num_right], slots, strict=False):
            child = self.trie.extend(path.tip, token, slot)
            if child.slot == slot:
                unclaimed.discard(slot)
            path.step_to(child)
            text.append(token)
        self.trie.give_back(unclaimed)

    @rule(which=st.integers(0, 50))
    def end(self, which: int) -> None:
        if self.paths:
            path, _ = self.paths.pop(which % len(self.paths))
            path.discard()

    @rule(which=st.integers(0, 50))
    def suspend(self, which: int) -> None:
        if self.paths:
            path, text = self.paths[which % len(self.paths)]
            path.release()
            text.clear()

    @rule(text=st.lists(st.integers(0, 2), max_size=4), owner=st.sampled_from(["", "ana"]))
    def evict_first(self, text: list[int], owner: str) -> None:
        self.trie.evict_first(owner, text)

    @rule()
    def clear(self) -> None:
        self.trie.clear()
        assert self.trie.num_nodes == len(self.held())

    @rule()
    def forget(self) -> None:
        """Paths under way share nothing with later ones; in the model they are of other owners."""
        self.trie.forget()
        assert self.trie.num_nodes == len(self.held())
        for path, _ in self.paths:
            self.owners[id(path)] += "'"

    @invariant()
    def books_add_up(self) -> None:
        self.trie.check_integrity(path.tip for path, _ in self.paths)
        slot_of: dict[tuple[str, tuple[int, ...]], int] = {}
        for path, text in self.paths:
            assert len(path) == len(text)
            for length, slot in enumerate(path.slots.tolist(), start=1):
                prefix = (self.owners[id(path)], tuple(text[:length]))
                assert slot_of.setdefault(prefix, slot) == slot, "one prefix has two slots"
        assert len(set(slot_of.values())) == len(slot_of), "two prefixes share a slot"


TrieMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTrie = TrieMachine.TestCase


def fill(trie: PrefixTrie, text: list[int]) -> None:
    path = Path(trie)
    path.follow(text, len(text))
    slots = trie.take(len(text) - len(path))
    assert slots is not None
    for token, slot in zip(text[len(path) :], slots, strict=True):
        path.step_to(trie.extend(path.tip, token, slot))
    path.discard()


def cached(trie: PrefixTrie, text: list[int]) -> int:
    path = Path(trie)
    length = path.follow(text, len(text))
    path.discard()
    return length


def test_the_least_recently_used_text_is_evicted_from_its_end() -> None:
    trie = PrefixTrie(8)
    fill(trie, [1, 2, 3])
    fill(trie, [4, 5, 6])
    fill(trie, [1, 2, 7])
    slots = trie.take(3)
    assert slots is not None
    trie.give_back(slots)
    assert cached(trie, [1, 2, 3]) == 2
    assert cached(trie, [1, 2, 7]) == 3
    assert cached(trie, [4, 5, 6]) == 2


def test_texts_that_will_not_go_on_are_evicted_first_and_what_others_share_is_not() -> None:
    trie = PrefixTrie(10)
    fill(trie, [1, 2, 3, 4])
    fill(trie, [1, 2, 8, 9])
    fill(trie, [5, 6])
    fill(trie, [1, 2, 3, 4, 7])
    trie.evict_first("", [1, 2, 3])
    trie.evict_first("another owner", [1])
    trie.evict_first("", [1, 2, 3, 3])
    assert cached(trie, [1, 2, 3, 4, 7]) == 5, "they stay until the room is needed"
    fill(trie, [1, 2, 3, 4, 7])
    trie.evict_first("", [1, 2, 3])
    slots = trie.take(4)
    assert slots is not None
    trie.give_back(slots)
    assert [cached(trie, text) for text in ([1, 2, 3], [1, 2, 8, 9], [5, 6])] == [2, 4, 2]


def test_a_text_that_is_under_way_outlives_the_order_to_evict_it_first() -> None:
    trie = PrefixTrie(6)
    fill(trie, [1, 2, 3])
    live = Path(trie)
    live.follow([1, 2, 3], 3)
    trie.evict_first("", [1])
    assert trie.take(4) is None
    trie.check_integrity([live.tip])
    live.discard()
    fill(trie, [4, 5, 6])
    trie.check_integrity([])


def test_forgotten_texts_are_found_no_more_and_free_their_slots() -> None:
    trie = PrefixTrie(8)
    fill(trie, [1, 2, 3])
    live = Path(trie)
    live.follow([1, 2], 2)
    trie.forget()
    assert cached(trie, [1, 2, 3]) == 0
    fill(trie, [1, 2, 3])
    assert (cached(trie, [1, 2, 3]), live.follow([1, 2, 3], 3)) == (3, 0)
    live.discard()
    assert trie.take(8) is not None


def test_the_eviction_queue_stays_bounded() -> None:
    trie = PrefixTrie(8)
    fill(trie, [1, 2, 3])
    for _ in range(5000):
        cached(trie, [1, 2, 3])
    assert len(trie._eviction_queue) < 2000


def test_owners_that_are_gone_are_forgotten() -> None:
    trie = PrefixTrie(8)
    fill(trie, [1, 2, 3])
    kept = Path(trie, "kept")
    for number in range(3000):
        Path(trie, str(number)).discard()
    assert len(trie._roots) < 2000
    assert cached(trie, [1, 2, 3]) == 3
    trie.check_integrity([kept.tip])
