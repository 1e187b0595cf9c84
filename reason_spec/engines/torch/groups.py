"""Groups of running requests with a common prefix, which share a row of attention."""

from __future__ import annotations

from reason_spec.engines.torch.kv import TrieNode
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.engines.torch.texts import SharedArray

_MAX_GROUP = 8


class _Group:
    """Requests whose texts have the same first ``num_shared`` tokens."""

    def __init__(self, number: int, tokens: SharedArray, root: TrieNode) -> None:
        self.number = number
        self.root = root
        self.tokens = tokens
        self.num_shared = len(tokens)
        self.num_members = 0

    def num_shared_with(self, tokens: SharedArray) -> int:
        """Return the length of the prefix shared with one more text."""
        return min(self.num_shared, self.tokens.num_shared(tokens))


class Groups:
    """The groups of all running requests; ``sequence.group`` is the number of its group."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._groups)

    def join(self, sequence: Sequence) -> None:
        """Add a request to a group that shares at least half of its text, or to a new one."""
        tokens = sequence.tokens.beginning(len(sequence.tokens))
        for group in self._groups.values():
            # Equal texts below different roots have different slots.
            num_shared = group.num_shared_with(tokens) if group.root is sequence.path.root else 0
            if group.num_members < _MAX_GROUP and 2 * num_shared >= max(len(tokens), len(group.tokens)):
                group.num_shared = num_shared
                break
        else:
            group = _Group(self._next_number, tokens, sequence.path.root)
            self._groups[group.number] = group
            self._next_number += 1
        group.num_members += 1
        sequence.group = group.number

    def leave(self, sequence: Sequence) -> None:
        group = self._groups[sequence.group]
        group.num_members -= 1
        if group.num_members == 0:
            del self._groups[sequence.group]
        sequence.group = -1

    def num_shared_by(self, sequence: Sequence) -> int:
        """Return the length of the prefix that the group of a request shares."""
        return self._groups[sequence.group].num_shared
