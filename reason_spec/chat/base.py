"""What a chat is asked and what it says: the values that the server and the wrappers of frameworks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from reason_spec.types import Constraint, LossClass, Usage

ChatFinish: TypeAlias = Literal["stop", "length", "tool_calls"]
ToolChoice: TypeAlias = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one answer may be sped up; None is as the settings say.

    ``loss_class`` bounds what a strategy may change: ``exact`` allows only those that change nothing.
    ``off`` leaves all speculation out.
    """

    strategy: str | None = None
    verifier: str | None = None
    depth: int | None = None
    width: int | None = None
    loss_class: LossClass | None = None
    off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSampling:
    """How tokens are chosen and where the answer ends; None is as the settings say.

    ``seed`` keys the noise: equal seeds draw equal samples. ``stop`` strings are cut off, and so is the token
    of ``stop_token_ids``, ids of the target, at which the answer ended. With ``ignore_eos``
    the end of the text is never chosen, which binds like a bias.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One conversation to go on with.

    Args:
        messages: turns in OpenAI's form (role, content as text or text parts, name, tool_calls, tool_call_id,
            reasoning or reasoning_content).
        tools: functions in OpenAI's form, ``{"type": "function", "function": {...}}``.
        tool_choice: a ToolChoice, or the name of the one function to call.
        constraint: what the answer's text has to be (``response_format``); thinking is not bound by it.
        chat_arguments: what the chat template is told, such as ``enable_thinking``.
        continue_final: go on within the last message.
        tenant: whose texts the suffix cache learns and proposes, and whose prefixes are used again.
        cache_salt: prefixes are used again for requests with the same salt alone.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    sampling: ChatSampling = field(default_factory=ChatSampling)
    policy: Policy = field(default_factory=Policy)
    chat_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    tenant: str | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A text to go on with as it is, without a chat template; ``prompt`` is text or tokens of the target."""

    prompt: str | tuple[int, ...]
    constraint: Constraint | None = None
    sampling: ChatSampling = field(default_factory=ChatSampling)
    policy: Policy = field(default_factory=Policy)
    tenant: str | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer as the model rated it: its id, bytes and log-probability at temperature 1."""

    token: int
    content: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is certain. ``channel`` says whether it is thinking or the answer.

    ``logprobs`` are of final steps; None where the mode does not know them (a drafted step that stands has
    the draft's).
    """

    channel: Literal["reasoning", "content"]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call: ``name`` and ``id`` come once, with the first piece; ``arguments`` is JSON text."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """What speculation did for one answer.

    Args:
        strategy, loss_class: what ran; where thinking and answer were written apart, those of the thinking.
        exact_answer_by: the strategy that wrote the answer behind the thinking; None where one wrote it all.
        reason: why another strategy wrote than was asked for, such as ``bound output``.
        steps_by_origin: number of final steps by who wrote them.
        verdicts: number of verdicts about proposed steps by decision.
        num_late_drafts: proposed steps that were not there when the target had its own, without a verdict.
        alpha_step, alpha_token: acceptance of the two layers; None where nothing was tried.
        target_usage, draft_usage: work, that of losing branches included.
        seconds: from the request to the end.
        target_alone_seconds: what the target alone would have taken, estimated from the measured time of its
            passes; None where the engine does not tell.
    """

    strategy: str
    loss_class: LossClass
    exact_answer_by: str | None
    reason: str | None
    steps_by_origin: Mapping[str, int]
    alpha_step: float | None
    alpha_token: float | None
    target_usage: Usage
    draft_usage: Usage
    seconds: float
    target_alone_seconds: float | None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    num_late_drafts: int = 0

    @property
    def alpha_step_of_all(self) -> float | None:
        """Acceptance of all proposed steps, those included that came too late for a verdict."""
        num_proposed = sum(self.verdicts.values()) + self.num_late_drafts
        return self.verdicts.get("accept", 0) / num_proposed if num_proposed else None


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of an answer. Tokens are the target's; ``num_cached_tokens`` of the prompt needed no pass."""

    finish: ChatFinish
    num_prompt_tokens: int
    num_tokens: int
    num_reasoning_tokens: int
    num_cached_tokens: int
    report: SpeculationReport
    stop: str | int | None = None
    """The stop string, or the id of ``stop_token_ids``, that ended it, if one did."""


ChatEvent: TypeAlias = TextDelta | ToolCallDelta | ChatEnd


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; ``arguments`` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer; ``content`` is None where there are calls and no text."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    end: ChatEnd
