"""One answer to write, and its prompt in the tokens of both models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict

from reason_spec.accelerator.thinking import ThinkingOptions
from reason_spec.engines.base import Engine
from reason_spec.engines.chat_template import ChatOptions, Message
from reason_spec.errors import PromptTooLongError
from reason_spec.settings import NO_EXIT, ExitSettings, Settings, StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.suffix_session import Segments
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Constraint, Prefix, Sampling, Step

_AFTER_EXAMPLES: Final = "\nAnswer:"
"""What follows a question behind solved examples, each of which has ``Question:`` and ``Answer:``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One answer to write. None takes the value of the settings.

    Exactly one of ``messages`` and ``prompt`` is given.

    Args:
        messages: a conversation; the answer is its next turn.
        prompt: text, or tokens of the target, to continue as it is, without a chat template.
        tools: functions the model may call, as JSON objects in OpenAI's form, for the chat template.
        chat_arguments: further arguments of the chat template.
        continue_final: continue the last message instead of answering it.
        written: steps of the answer that exist already; generation continues after them, and
            stops and positions of text are those of what follows.
        strategy: its name, its settings, or the object that `Generator.strategy` built.
        verifier: its name; it is loaded first if it was not used before. Not read beside a built strategy.
        sampling: how tokens are chosen, keys of the noise included.
        max_tokens: limit of the new tokens, without those of ``written``.
        stops: texts that end the answer; they are cut off.
        stop_ids: tokens of the target that end the answer; they are not part of its text. A strategy that
            does not support them is replaced by the target alone.
        constraint, logit_bias: restrict the output; the target then writes alone, whatever the strategy.
        thinking: limits of the thinking before the answer, as options or in full; None: no limits, not even
            those of the settings. They are for models that think, and not for a ``prompt``; early exit is for
            other models too, and for a ``prompt`` only where the options name it.
        tenant: owner of the texts in the suffix cache and of the prefixes in the engines' caches.
        cache_salt: prefixes are reused only for requests with the same salt.
        session: the client's name of the conversation, for the suffix cache; empty: known by its text alone.
        scope: each scope has a suffix cache of its own, for comparisons.
        siblings: answers of one tenant with the same name draft for each other: samples of one problem.
    """

    messages: Sequence[Message] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    chat_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    written: tuple[Step, ...] = ()
    strategy: str | StrategySettings | Strategy | None = None
    verifier: str | None = None
    sampling: Sampling | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] | None = None
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    thinking: ThinkingOptions | ThinkingLimit | None = field(default_factory=ThinkingOptions)
    tenant: str | None = None
    cache_salt: str = ""
    session: str = ""
    scope: str = ""
    siblings: str = ""

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give either messages or a prompt")

    @property
    def is_restricted(self) -> bool:
        """Whether only the target can write the answer."""
        return self.constraint is not None or bool(self.logit_bias)

    def exit_under(self, settings: ExitSettings) -> ExitSettings:
        """Return when the thinking may end early, by the request's options or the settings."""
        options = self.thinking
        if not isinstance(options, ThinkingOptions) or self.written:
            return NO_EXIT
        if options.exit is not None:
            return options.exit
        # A bare prompt is text to continue; it need not be a question.
        return settings if self.messages else NO_EXIT

    def owner_under(self, settings: Settings) -> str:
        """Return the owner of the request's prefixes, by tenant and salt; see `Prefix`."""
        is_own = self.tenant in (None, settings.suffix.tenant) or settings.server.share_prefixes
        tenant = "" if is_own else self.tenant
        return f"{tenant}\0{self.cache_salt}" if tenant or self.cache_salt else ""

    @property
    def question(self) -> str:
        """The question as verifiers see it: the user's last message, or the prompt.

        Verifiers were trained on bare questions. Solved examples are left out, as is a last line that asks
        for a boxed answer.
        """
        questions = [message["content"] or "" for message in self.messages if message["role"] == "user"]
        if not questions:
            return str(self.prompt or "")
        last = questions[-1]
        if last.endswith(_AFTER_EXAMPLES):
            last = last.removesuffix(_AFTER_EXAMPLES).rpartition("Question: ")[2]
        before, _, line = last.rpartition("\n")
        is_instruction = "\\boxed{}" in line and "?" not in line and before
        return before.rstrip() if is_instruction else last

    def tokens_for(self, engine: Engine, target: Engine) -> tuple[int, ...]:
        """Return the prompt in the tokens of an engine's model.

        Raises:
            EngineError: the chat template refuses the conversation.
        """
        tokenizer = engine.tokenizer
        if self.prompt is None:
            options = ChatOptions(self.tools, self.chat_arguments, self.continue_final)
            return tokenizer.encode_chat(self.messages, options)
        if isinstance(self.prompt, str):
            return tokenizer.encode_prompt(self.prompt)
        if tokenizer.tokenizer_id == target.tokenizer.tokenizer_id:
            return self.prompt
        return tokenizer.encode_prompt(target.tokenizer.decode_prompt(self.prompt))


class RequestOptions(TypedDict, total=False):
    """How to answer a question or a conversation.

    ``problem`` and ``sample`` are keys of the sampling noise: equal keys draw equal noise. The others are as
    in `GenerationRequest`.
    """

    strategy: str | None
    thinking: ThinkingOptions
    problem: int
    sample: int
    tenant: str | None
    scope: str


class Prompts(NamedTuple):
    """The prompt of a request in the tokens of each model; ``draft`` is None without a draft.

    ``segments`` label the parts of the target's prompt as tool result, model output or other text; empty
    without a suffix cache.
    """

    target: Prefix
    draft: Prefix | None
    segments: Segments

    def check_room(self, target: Engine) -> None:
        """Check that the context of the target has room for an answer.

        Raises:
            PromptTooLongError: the prompt fills it.
        """
        if len(self.target) >= target.max_context:
            raise PromptTooLongError(
                f"the prompt has {len(self.target)} tokens and leaves no room for an answer: the context of "
                f"engine {target.name!r} is {target.max_context} tokens; shorten the question"
            )

    def segments_with(self, written: tuple[int, ...]) -> tuple[Segments, Segments]:
        """Return the texts of target and draft, prompt and ``written`` answer, for the suffix cache."""
        segments, of_draft = self.segments, self.segments
        if self.draft is not None and self.draft.to_tuple() != self.target.to_tuple():
            of_draft = (("prompt", self.draft.to_tuple()),)
        if written:
            segments, of_draft = (*segments, ("output", written)), (*of_draft, ("output", written))
        return segments, of_draft
