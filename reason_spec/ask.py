"""What is asked of the accelerator: a conversation or a text to go on from, and how to answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reason_spec.engines.chat_template import Message
from reason_spec.settings import StrategySettings
from reason_spec.strategies.suffix_session import Segments
from reason_spec.types import Constraint, Prefix, Sampling, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One answer to write. What is None is as the settings say.

    Exactly one of ``messages`` and ``prompt`` is given.

    Args:
        messages: a conversation; the answer is its next turn.
        prompt: text, or tokens of the target, that is gone on from as it is, without a chat template.
        tools: what the model may call, as JSON objects of OpenAI's form, for the chat template.
        chat_arguments: what the chat template is told beside the conversation.
        continue_final: go on within the last message instead of answering it.
        written: steps of the answer that are there; the answer goes on behind them.
        strategy: who writes the steps, by name or with everything set.
        verifier: its name; one that was not used before is loaded first.
        sampling: how tokens are chosen, keys of the noise included.
        max_tokens: tokens at the most, those of ``written`` not counted.
        stops: texts that end the answer; they are cut off.
        stop_ids: tokens of the target that end the answer, and are no part of its text. Where the strategy
            writes steps the target writes alone instead.
        constraint, logit_bias: bound what is written; the target then writes alone, whatever the strategy.
        tenant: whose texts the suffix cache learns and proposes, and the engines' prefix caches use again.
        cache_salt: prefixes are used again for asks with the same salt alone.
        scope: what is compared has a suffix cache of its own for each scope.
    """

    messages: Sequence[Message] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    chat_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    written: tuple[Step, ...] = ()
    strategy: str | StrategySettings | None = None
    verifier: str | None = None
    sampling: Sampling | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] | None = None
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    tenant: str | None = None
    cache_salt: str = ""
    scope: str = ""

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give either messages or a prompt")

    @property
    def is_bound(self) -> bool:
        """Whether only the target can do what is asked."""
        return self.constraint is not None or bool(self.logit_bias)

    @property
    def question(self) -> str:
        """What verifiers are told the answer is about: the last thing the user said."""
        said = [message["content"] or "" for message in self.messages if message["role"] == "user"]
        return said[-1] if said else str(self.prompt or "")


class Prompts(NamedTuple):
    """The prompt of an ask in the tokens of each model; there may be no draft.

    ``segments`` tell apart what of the target's a tool returned, what the model wrote, and what it was told;
    empty where nothing is learnt from texts.
    """

    target: Prefix
    draft: Prefix | None
    segments: Segments
