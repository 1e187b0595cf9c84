"""Response bodies in OpenAI's form, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from reason_spec.events import ThinkingEnd
from reason_spec.types import LossClass


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every error."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class UsageBody(TypedDict):
    """Tokens of the target. ``prompt_tokens_details`` is null for clients that are not trusted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails


class EngineWork(TypedDict):
    """Tokens that one engine wrote, drafted or confirmed."""

    generated: int
    discarded: int
    drafted: int
    accepted: int
    passes: int


class ModelWork(TypedDict):
    target: EngineWork
    draft: EngineWork


class EarlyExitBody(TypedDict):
    """Early exit in one answer. ``step``, ``answer`` and ``chance`` are null where the model ended itself.

    ``step`` counts the steps before the end of the thinking.
    """

    rule: str
    step: int | None
    answer: str | None
    chance: float | None
    probes: int
    probe_tokens: int


class FunctionBody(TypedDict):
    name: str
    arguments: str


class PredictedCallBody(TypedDict):
    """A predicted call. ``made`` comes with the report: whether this answer made it."""

    type: Literal["function"]
    function: FunctionBody
    probability: float
    made: NotRequired[bool]


class SpeculationBody(TypedDict):
    """The report about speculation for one answer; only for trusted clients."""

    strategy: str
    loss_class: LossClass
    step_loss_class: LossClass
    early_exit: EarlyExitBody | None
    exact_answer_by: str | None
    reason: str | None
    steps: dict[str, int]
    alpha_step: float | None
    alpha_step_of_all: float | None
    alpha_token: float | None
    tokens: ModelWork
    seconds: float
    seconds_saved: float | None
    thinking_ended_by: ThinkingEnd | None
    predicted_tool_calls: list[PredictedCallBody] | None


class SpeculativeDecoding(TypedDict):
    """Acceptance of one answer under vLLM's names, then the step level.

    A step of vLLM is a pass of the target that checked drafts. ``acceptance_histogram`` counts them by the
    number of accepted drafts.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    num_proposed_steps: int
    num_accepted_steps: int
    num_late_steps: int


class MetricsBody(TypedDict):
    """``speculative_decoding`` is null where nothing was drafted, of tokens or of steps."""

    speculative_decoding: SpeculativeDecoding | None


class LogprobBody(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Any]


class ChatLogprobs(TypedDict):
    content: list[LogprobBody] | None
    refusal: None


class ToolCallBody(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionBody


class MessageBody(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallBody]]


class ChoiceBody(TypedDict):
    """One answer. ``stop_reason`` is the stop string or token id that ended it, as vLLM names it."""

    index: int
    stop_reason: str | int | None
    reason_spec: NotRequired[SpeculationBody]


class ReplyBody(TypedDict):
    """The common fields of whole answers."""

    id: str
    created: int
    model: str
    usage: UsageBody
    system_fingerprint: str
    reason_spec: NotRequired[SpeculationBody]
    metrics: NotRequired[MetricsBody]


class ChatChoice(ChoiceBody):
    message: MessageBody
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(ReplyBody):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    service_tier: None


class CompletionLogprobs(TypedDict):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: None


class CompletionChoice(ChoiceBody):
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(ReplyBody):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class EndedSession(TypedDict):
    """``deleted`` is false where no request has named the session."""

    id: str
    object: Literal["session"]
    deleted: bool


class ModelBody(TypedDict):
    """A name that the target is served under."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelBody]
