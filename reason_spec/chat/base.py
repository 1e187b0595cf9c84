"""Requests and events of a chat, shared by the server and the integrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from reason_spec.events import EarlyExit, ThinkingEnd
from reason_spec.settings import ExitRuleName
from reason_spec.types import Constraint, LossClass, Usage

ChatFinish: TypeAlias = Literal["stop", "length", "tool_calls"]
ToolChoice: TypeAlias = Literal["none", "auto", "required"]
CallListener: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with the name and the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The speculation allowed for one answer; None takes the value of the settings.

    ``loss_class`` limits the strategies: ``exact`` allows only those that do not change the answer.
    ``off`` disables speculation. ``exit`` is a rule of early exit, ``exit_threshold`` its least chance.
    """

    strategy: str | None = None
    verifier: str | None = None
    depth: int | None = None
    width: int | None = None
    loss_class: LossClass | None = None
    off: bool = False
    exit: ExitRuleName | None = None
    exit_threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSampling:
    """The sampling and the end of an answer; None takes the value of the settings.

    Equal ``seed``s draw equal samples. ``stop`` strings are removed from the answer, and so is the final
    token if it is one of ``stop_token_ids``, ids of the target. With ``ignore_eos`` the end of the text is
    never sampled; like a bias, this leaves the answer to the target. ``thinking_token_budget`` and
    ``max_thinking_steps`` limit the thinking of a conversation, without its tags; -1 tokens: no limit.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    thinking_token_budget: int | None = None
    max_thinking_steps: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to continue.

    Args:
        messages: turns in OpenAI's form (role, content as text or text parts, name, tool_calls, tool_call_id,
            reasoning or reasoning_content).
        tools: functions in OpenAI's form, ``{"type": "function", "function": {...}}``.
        tool_choice: a ToolChoice, or the name of the one function to call.
        constraint: constraint on the answer's text (``response_format``), not on its thinking.
        chat_arguments: variables of the chat template, such as ``enable_thinking``.
        reasoning_effort: passed to a chat template that knows it, else a token budget of the thinking by the
            settings; ``none``: no thinking.
        continue_final: continue the last message.
        tenant: owner of the texts in the suffix cache and of the cached prefixes.
        cache_salt: cached prefixes are only shared by requests with the same salt.
        session: the client's name of the conversation, empty without one.
        on_drafted_call: called once for each whole call in a drafted step of the answer, mostly before the
            target has written it or another; in the models' event loop, which it must not block.
        logprobs: log-probabilities are wanted. An answer with gpt-oss's tools then ends at a stop string only
            when those of the text before it are known, at most at the end of the step.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    sampling: ChatSampling = field(default_factory=ChatSampling)
    policy: Policy = field(default_factory=Policy)
    chat_arguments: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    continue_final: bool = False
    tenant: str | None = None
    cache_salt: str = ""
    session: str = ""
    on_drafted_call: CallListener | None = None
    logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A text to continue, without a chat template; ``prompt`` is text or tokens of the target."""

    prompt: str | tuple[int, ...]
    constraint: Constraint | None = None
    sampling: ChatSampling = field(default_factory=ChatSampling)
    policy: Policy = field(default_factory=Policy)
    tenant: str | None = None
    cache_salt: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer: its id, bytes and log-probability at temperature 1."""

    token: int
    content: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Final text of the thinking or of the answer, by ``channel``.

    ``logprobs`` are those of final steps, None if unknown; an accepted draft has the draft's.
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
class PredictedCall:
    """A call that was predicted before the answer; ``arguments`` is JSON text.

    ``chance`` is that of being made before something may have changed, by this answer or a later one.
    ``is_made``: whether this answer made it, None until that is known.
    """

    name: str
    arguments: str
    chance: float
    is_made: bool | None = None


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """The speculation of one answer.

    Args:
        strategy, loss_class: those in use; if thinking and answer had different ones, those of the thinking.
        exact_answer_by: the strategy of the text after the thinking; None if it is the same.
        reason: the reason for another strategy than requested, such as ``bound output``.
        steps_by_origin: number of final steps by origin.
        verdicts: number of verdicts by decision.
        exit_rule: the rule that watched the thinking, None without early exit; ``loss_class`` is then
            ``shortened``, and ``step_loss_class`` is that of the steps.
        early_exit: where it ended the thinking, None where it did not.
        num_probes, num_probe_tokens: its trial answers, and their tokens.
        num_late_drafts: drafts cancelled without a verdict because the target had finished the step first.
        alpha_step, alpha_token: acceptance rates of the two levels; None if nothing was proposed.
        target_usage, draft_usage: work of the models, rejected branches included.
        seconds: from the request to the end.
        thinking_ended_by: what ended a limited thinking: the model, a limit of tokens or steps, or a monitor;
            None without a limit.
        predicted_calls: the predicted calls; None where none were looked for.
        target_alone_seconds: estimated time of the target alone, from the measured time of its passes;
            None if the engine does not measure it.
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
    step_loss_class: LossClass = "exact"
    exit_rule: ExitRuleName | None = None
    early_exit: EarlyExit | None = None
    num_probes: int = 0
    num_probe_tokens: int = 0
    thinking_ended_by: ThinkingEnd | None = None
    predicted_calls: tuple[PredictedCall, ...] | None = None

    @property
    def alpha_step_of_all(self) -> float | None:
        """Acceptance of all proposed steps, those included that came too late for a verdict."""
        num_proposed = sum(self.verdicts.values()) + self.num_late_drafts
        return self.verdicts.get("accept", 0) / num_proposed if num_proposed else None


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of an answer. Tokens are the target's; ``num_cached_tokens`` of the prompt needed no pass.

    ``num_reasoning_tokens`` are those of the thinking without its tags, which are part of ``num_tokens``.
    """

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
    """A whole answer; ``content`` is None where there are calls and no text.

    ``parts`` are its texts and calls in the order of the stream.
    """

    parts: tuple[TextDelta | ToolCallDelta, ...]
    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    end: ChatEnd
