"""Sessions that clients name: what belongs to one, so that it can be released when it ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.requests import Prompts
from reason_spec.engines.base import Engine
from reason_spec.server.predicted_calls import CallPredictions
from reason_spec.suffix.base import num_shared
from reason_spec.types import Prefix

SESSION_HEADER: Final = "x-session-id"
"""Names the session of a request whose body does not; Ray's router sends a session to one pair by it."""
_MAX_SESSIONS: Final = 256
"""Of one tenant; those without a request for the longest time are left to the caches' own order."""
_MAX_TOKENS: Final = 1 << 22
"""Of the beginnings of one tenant's sessions together, in one engine."""
_MAX_BEGINNINGS: Final = 8
"""Conversations of one session, such as those of its agents."""
_MAX_HEADER: Final = 16
"""Tokens at the end of a prompt that open the answer, and need not be part of the next prompt."""


@dataclass(slots=True)
class _Beginnings:
    """How the conversations of a session begin, in the tokens of one engine; the answers follow."""

    engine: Engine
    found: list[Prefix] = field(default_factory=list)

    def note(self, prompt: Prefix) -> None:
        tokens = prompt.to_tuple()
        for place, known in enumerate(self.found):
            length = num_shared(known.tokens, tokens)
            num_lost = len(known) - length
            if known.owner == prompt.owner and num_lost <= min(_MAX_HEADER, len(known) // 10):
                self.found[place] = Prefix(tokens[:length], owner=prompt.owner)
                return
        if len(self.found) < _MAX_BEGINNINGS:
            self.found.append(Prefix(tokens, owner=prompt.owner))

    def release(self) -> None:
        for prefix in self.found:
            self.engine.evict_first(prefix)


class Sessions:
    """The named sessions of all tenants.

    A session ends when its client says so. Then its conversations in the suffix cache are closed, its cached
    prefixes are the first to be evicted, and what its calls teach is learnt. What was learnt is kept.
    """

    def __init__(self, accelerator: Accelerator, predictions: CallPredictions | None) -> None:
        self._accelerator = accelerator
        self._predictions = predictions
        self._by_tenant: dict[str, OrderedDict[str, Sequence[_Beginnings]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    def note(self, tenant: str, name: str, prompts: Prompts) -> None:
        """Note a request of a session by its prompt."""
        sessions = self._by_tenant.setdefault(tenant, OrderedDict())
        if name not in sessions:
            engines = (self._accelerator.target, self._accelerator.draft)
            sessions[name] = [_Beginnings(engine) for engine in engines if engine is not None]
        sessions.move_to_end(name)
        for beginnings, prompt in zip(sessions[name], (prompts.target, prompts.draft), strict=False):
            if prompt is not None:
                beginnings.note(prompt)
        while len(sessions) > 1 and (len(sessions) > _MAX_SESSIONS or _num_tokens(sessions) > _MAX_TOKENS):
            sessions.popitem(last=False)

    def end(self, tenant: str, name: str) -> bool:
        """Release what belongs to a session, and learn from it; return whether a request has named it."""
        if (cache := self._accelerator.suffix_sessions) is not None:
            cache.end_named(tenant, name)
        if self._predictions is not None:
            self._predictions.end(tenant, name)
        known = self._by_tenant.get(tenant, OrderedDict()).pop(name, None)
        for beginnings in known or ():
            beginnings.release()
        return known is not None


def _num_tokens(sessions: Mapping[str, Sequence[_Beginnings]]) -> int:
    """Return the tokens of all beginnings in the first engine."""
    return sum(len(prefix) for beginnings in sessions.values() for prefix in beginnings[0].found)
