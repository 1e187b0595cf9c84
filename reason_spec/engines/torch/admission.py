"""Which requests run and which wait, by priority, arrival and free slots."""

from __future__ import annotations

from reason_spec.engines.request_queue import RequestQueue
from reason_spec.engines.torch.groups import Groups
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.sequence import Sequence


class SequenceAdmission:
    """The running and the waiting sequences of a scheduler.

    If the slots run out, the least urgent sequences go back to waiting. Their keys and values stay cached
    while there is room, so that they continue from there.
    """

    def __init__(self, trie: PrefixTrie, max_running: int) -> None:
        self._trie = trie
        self._max_running = max_running
        self.running: RequestQueue[Sequence] = RequestQueue()
        self.waiting: RequestQueue[Sequence] = RequestQueue()
        self.groups = Groups()

    def admit(self) -> None:
        """Let waiting sequences run, the most urgent first, as long as there is room for them."""
        for candidate in self.waiting:
            if not candidate.ready or candidate.finished:
                continue
            if len(self.running) >= self._max_running:
                last = self.running.last()
                if candidate.priority >= last.priority:
                    return
                self._suspend(last)
            if not self._has_room_for(candidate):
                return
            self.waiting.remove(candidate)
            self.groups.join(candidate)
            self.running.add(candidate)

    def reserve(self, num_slots: int, sequence: Sequence) -> bool:
        """Suspend less urgent sequences until ``num_slots`` are free; False if ``sequence`` was suspended."""
        while not self.has_free(num_slots):
            last = self.running.last()
            self._suspend(last)
            if last is sequence:
                return False
        return True

    def has_free(self, num_slots: int) -> bool:
        """Return whether enough slots are free, evicting cached ones if needed."""
        slots = self._trie.take(num_slots)
        if slots is None:
            return False
        self._trie.give_back(slots)
        return True

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.groups.leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _has_room_for(self, candidate: Sequence) -> bool:
        """Return whether its text fits beside those of the running sequences, sharing nothing."""
        held = sum(len(sequence.tokens) for sequence in self.running)
        return not len(self.running) or held + len(candidate.tokens) <= self._trie.num_slots

    def _suspend(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.groups.leave(sequence)
        sequence.suspend()
        self.waiting.add(sequence)
