"""Connects the suffix cache to generation: learns final steps, and proposes the next step and tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from reason_spec.control.answer_model import NOTHING_CACHED, CacheForecast
from reason_spec.engines.base import Engine, Tokenizer
from reason_spec.engines.chat_template import Message
from reason_spec.engines.generation import TIMES_IF_LIKELY, EngineRequest
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.text_updates import (
    BeginText,
    CloseText,
    EraseTexts,
    ExtendText,
    ForgetTexts,
    Opening,
    TextUpdate,
)
from reason_spec.errors import DataError
from reason_spec.settings import SuffixSettings
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.strategies.step_tokens import step_from_result, tokens_for
from reason_spec.suffix.base import Session, Source, num_shared
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import Step, Usage

logger = logging.getLogger(__name__)
_NUM_KEPT = 16
"""Conversations that are kept open for their next turn."""
_NUM_KEPT_NAMED = 64
"""The same for conversations of named sessions, whose clients say when they end."""
_SAME = 0.5
"""A prompt that begins with at least this share of a conversation's tokens is its next turn."""
_LEAST_STEP_CHANCE = 0.6
"""Steps with a smaller probability are left to the draft model."""
_TOKEN_BYTES = 4
_SOURCES: dict[str, Source] = {"tool": "tool", "function": "tool", "assistant": "output"}

Segments = tuple[tuple[Source, tuple[int, ...]], ...]


@dataclass(eq=False, slots=True)
class _Conversation:
    """A text that grows turn by turn, with its tokens so far."""

    number: int
    tenant: str
    scope: str
    name: str
    session: Session
    tokens: list[int] = field(default_factory=list)


class SuffixCacheSession:
    """The suffix cache of one answer. Close it when the answer is over.

    It learns final steps only; steps that a branch assumes beyond them are part of a query. A tenant's cache
    that fails is left out from then on, and neither the answer nor other tenants' caches are affected.
    """

    def __init__(self, owner: SuffixCacheSessions, conversation: _Conversation, target: Engine) -> None:
        self._owner = owner
        self._conversation = conversation
        self._target = target
        self._tenant = conversation.tenant

    @property
    def text(self) -> int | None:
        """The number under which the target's engine knows the text; None where it does not."""
        owner = self._owner
        return (
            self._conversation.number if owner.drafts_tokens and not owner.has_failed(self._tenant) else None
        )

    @property
    def draft_text(self) -> int | None:
        """The number under which the draft's engine knows the text; None where it does not."""
        owner = self._owner
        return (
            self._conversation.number
            if owner.drafts_for_draft and not owner.has_failed(self._tenant)
            else None
        )

    @property
    def proposes_steps(self) -> bool:
        return self._owner.settings.use in ("steps", "both") and not self._owner.has_failed(self._tenant)

    def learn(self, step: Step) -> None:
        """Take the next final step of the answer."""
        if self._owner.has_failed(self._tenant):
            return
        tokens = tokens_for(step, self._target)
        session = self._conversation.session
        with self._owner.guarded(self._tenant):
            if self.proposes_steps:
                # A cache learns from the outcome of its last proposal, which was for a later position.
                session.propose_tokens(len(tokens))
            session.extend(tokens)
        self._conversation.tokens += tokens
        self._owner.update_text(ExtendText(self._conversation.number, tokens))

    def next_step(self, request: EngineRequest) -> Step | None:
        """Return the step that the target is likely to write for a request, None where none is known.

        The request's prefix continues from the final steps; it may hold steps that are only assumed.
        """
        if not self.proposes_steps:
            return None
        num_final = len(self._conversation.tokens)
        after = request.prefix.tokens_after(num_final)
        vocabulary = self._target.tokenizer

        def follow(tokens: Sequence[int]) -> RequestOutput:
            written = RequestOutput(request, vocabulary, request.max_tokens)
            written.extend(tokens, [0.0] * len(tokens))
            return written

        def find_end(tokens: Sequence[int]) -> int | None:
            try:
                written = follow(tokens)
            except LookupError:
                # What was kept may hold tokens that a vocabulary which grows does not know yet: this text
                # proposes no step.
                return None
            return None if written.finish is None else len(written.tokens)

        with self._owner.guarded(self._tenant):
            found = self._conversation.session.propose_step(
                find_end, request.max_tokens, min_chance=_LEAST_STEP_CHANCE, after=after
            )
            written = None if found is None else follow(found.tokens)
            if written is not None and written.finish is not None:
                step = step_from_result(written.result(written.finish, Usage()), "cache", self._target)
                # No model has rated its tokens.
                return replace(step, logprobs=None)
        return None

    def forecast(self, num_draft_tokens: int) -> CacheForecast:
        """Return the tokens that would be drafted for the target's next pass, after the final steps."""
        if not self._owner.drafts_tokens or self._owner.has_failed(self._tenant):
            return NOTHING_CACHED
        with self._owner.guarded(self._tenant):
            budget = TIMES_IF_LIKELY * num_draft_tokens
            found = self._conversation.session.propose_tokens(budget, tree=True)
            return CacheForecast(len(found.tokens), sum(found.chances))
        return NOTHING_CACHED

    def close(self) -> None:
        """Keep the conversation for its next turn."""
        self._owner.take_back(self._conversation)


@dataclass(frozen=True, slots=True)
class _Guard:
    """The context manager of `SuffixCacheSessions.guarded`."""

    failed: set[str]
    tenant: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed.add(self.tenant)
        message = "the suffix cache of tenant %s is left out from now on: %s: %s"
        logger.warning(message, self.tenant, type(error).__name__, error)
        return True


class SuffixCacheSessions:
    """The suffix caches of one target, and the conversations that continue in them.

    Args:
        target: follows all texts too, where it drafts tokens from earlier ones.
        draft: likewise, where it shares the target's vocabulary.
    """

    def __init__(
        self, settings: SuffixSettings, caches: SuffixCaches, target: Engine, draft: Engine | None = None
    ) -> None:
        self.settings = settings
        tokens = settings.use in ("tokens", "both")
        self.drafts_tokens = tokens and target.takes_texts
        self.drafts_for_draft = (
            tokens and draft is not None and draft.takes_texts and can_share_tokens(draft, target)
        )
        self._draft = draft
        self._failed: set[str] = set()
        self._caches = caches
        self._target = target
        self._num_learned = 0
        self._num_kept = 0
        self._numbers = count()
        self._idle: list[_Conversation] = []

    def has_failed(self, tenant: str) -> bool:
        """Return whether a tenant's cache is left out."""
        return tenant in self._failed

    def guarded(self, tenant: str) -> _Guard:
        """Turn an error of a tenant's cache into a warning, and leave that cache out from then on."""
        return _Guard(self._failed, tenant)

    def open(
        self,
        segments: Segments,
        of_draft: Segments | None = None,
        *,
        tenant: str | None = None,
        scope: str = "",
        name: str = "",
    ) -> SuffixCacheSession | None:
        """Return the session of an answer to a prompt: the next turn of a conversation that begins like it.

        None where the tenant's cache has failed.

        Args:
            of_draft: the prompt as the draft model reads it; None: as the target does.
            name: the client's session; only conversations of the same one continue.
        """
        for erased in self._caches.take_erased():
            self.update_text(EraseTexts(erased))
        tenant = tenant or self.settings.tenant
        if self.has_failed(tenant):
            return None
        tokens = [token for _, part in segments for token in part]
        with self.guarded(tenant):
            conversation = self._take_up(tokens, tenant, scope, name)
            conversation.session.begin(segments)
            conversation.tokens = tokens
            if self.drafts_tokens:
                self._target.update_text(BeginText(conversation.number, Opening(tenant, scope, segments)))
            if self._draft is not None and self.drafts_for_draft:
                opening = Opening(tenant, scope, of_draft or segments)
                self._draft.update_text(BeginText(conversation.number, opening))
            return SuffixCacheSession(self, conversation, self._target)
        return None

    def forget(self, scope: str) -> None:
        """Reset a scope; no answer may be running in it."""
        for conversation in [idle for idle in self._idle if idle.scope == scope]:
            self._idle.remove(conversation)
            self._end(conversation)
        self._caches.forget(scope)
        self.update_text(ForgetTexts(scope))

    def update_text(self, update: TextUpdate) -> None:
        """Pass an update on to the engines that draft from the texts."""
        if self.drafts_tokens:
            self._target.update_text(update)
        if self._draft is not None and self.drafts_for_draft:
            self._draft.update_text(update)

    def take_back(self, conversation: _Conversation) -> None:
        self._num_learned += 1
        self._idle.append(conversation)
        alike = [idle for idle in self._idle if bool(idle.name) == bool(conversation.name)]
        if len(alike) > (_NUM_KEPT_NAMED if conversation.name else _NUM_KEPT):
            self._idle.remove(alike[0])
            self._end(alike[0])

    def end_named(self, tenant: str, name: str) -> None:
        """End the idle conversations of a client's session; the cache keeps what it learned from them."""
        for conversation in [idle for idle in self._idle if (idle.tenant, idle.name) == (tenant, name)]:
            self._idle.remove(conversation)
            self._end(conversation)

    def load(self, tenants: Iterable[str]) -> None:
        """Read what was kept of tenants, whose first answers would wait for it otherwise."""
        for tenant in tenants:
            if not self.has_failed(tenant):
                with self.guarded(tenant):
                    self._caches.open_session("", tenant).close()

    def save(self) -> None:
        """Save what was learned since the last time, if the settings name a folder.

        May be called in another thread while answers are written. If saving fails the cache works on.
        """
        num_learned = self._num_learned
        if num_learned == self._num_kept:
            return
        try:
            self._caches.save()
        except Exception as error:
            kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
            logger.warning("what the suffix cache learned is not kept: %s%s", kind, error)
        else:
            self._num_kept = num_learned

    def _take_up(self, tokens: Sequence[int], tenant: str, scope: str, name: str) -> _Conversation:
        key = (tenant, scope, name)
        own = [idle for idle in self._idle if (idle.tenant, idle.scope, idle.name) == key]
        shared = {id(idle): num_shared(idle.tokens, tokens) for idle in own}
        best = max(own, key=lambda idle: shared[id(idle)], default=None)
        if best is None or shared[id(best)] < _SAME * len(best.tokens):
            session = self._caches.open_session(scope, tenant)
            return _Conversation(next(self._numbers), tenant, scope, name, session)
        self._idle.remove(best)
        return best

    def _end(self, conversation: _Conversation) -> None:
        with self.guarded(conversation.tenant):
            conversation.session.close()
        self.update_text(CloseText(conversation.number))


def segments_of(messages: Sequence[Message], prompt: Sequence[int], tokenizer: Tokenizer) -> Segments:
    """Cut a prompt into tool results, outputs of the model, and the rest.

    A message is found by its tokens without the first and the last, which may differ beside the text of the
    chat template; a message that is not found counts as the rest.
    """
    segments: list[tuple[Source, tuple[int, ...]]] = []
    whole, done = _as_bytes(prompt), 0
    for message in messages:
        source = _SOURCES.get(message["role"])
        inner = tokenizer.encode(message["content"] or "")[1:-1] if source else ()
        start = _find(_as_bytes(inner), whole, done) if inner else None
        if source is None or start is None:
            continue
        segments.append(("prompt", tuple(prompt[done:start])))
        segments.append((source, tuple(inner)))
        done = start + len(inner)
    segments.append(("prompt", tuple(prompt[done:])))
    return tuple((source, tokens) for source, tokens in segments if tokens)


def _as_bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _find(part: bytes, whole: bytes, start: int) -> int | None:
    """Return where tokens begin among others, from ``start`` on; searching bytes is linear."""
    place = whole.find(part, start * _TOKEN_BYTES)
    while place % _TOKEN_BYTES and place >= 0:
        place = whole.find(part, place + 1)
    return None if place < 0 else place // _TOKEN_BYTES
