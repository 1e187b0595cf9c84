"""Whether a model thinks is read from its prompt, and what ends its thinking from its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.requests import GenerationRequest
from reason_spec.accelerator.thinking import Thinking, ThinkingOptions, thinking_after
from reason_spec.engines.chat_template import ChatOptions, Message
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.engines.tokenizer import CHANNEL_TOKENS, CONSTRAIN_TOKEN, HuggingFaceTokenizer
from reason_spec.errors import SettingsError
from reason_spec.events import ThinkingOutcome
from reason_spec.settings import ThinkingSettings, load_settings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.verifiers.exact import ExactVerifier
from tests.engines.thinking_templates import DEEPSEEK_R1, GPT_OSS, QWEN3, TemplateTokenizer
from tests.engines.tiny_models import EOS, byte_level_tokenizer

QUESTION: list[Message] = [{"role": "user", "content": "two and two"}]
THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ALWAYS = THINKS + "<think>\n"
SWITCHED = (
    THINKS
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)


def tokenizer_with(template: str | None, *, hidden: bool = False) -> HuggingFaceTokenizer:
    wrapped: Any = byte_level_tokenizer()
    wrapped.add_tokens(["</think>"], special_tokens=hidden)
    eos = frozenset({wrapped.convert_tokens_to_ids(EOS)})
    return HuggingFaceTokenizer(wrapped.backend_tokenizer, eos_ids=eos, chat_template=template)


@pytest.mark.parametrize(
    ("template", "arguments", "thinking"),
    [
        (ALWAYS, {}, Thinking()),
        (SWITCHED, {}, Thinking("<think>\n")),
        (SWITCHED, {"enable_thinking": True}, Thinking("<think>\n")),
        (SWITCHED, {"enable_thinking": False}, None),
        # It only cuts the thinking of earlier turns out.
        ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", {}, None),
        (THINKS, {}, None),
        (None, {}, None),
    ],
)
def test_the_template_says_whether_a_model_thinks(
    template: str | None, arguments: dict[str, Any], thinking: Thinking | None
) -> None:
    tokenizer = tokenizer_with(template)
    prompt = tokenizer.encode_chat(QUESTION, ChatOptions(arguments=arguments))
    assert thinking_after(prompt, tokenizer, arguments) == thinking


def test_tags_that_the_tokenizer_hides_are_no_thinking() -> None:
    tokenizer = tokenizer_with(ALWAYS, hidden=True)
    assert thinking_after(tokenizer.encode_chat(QUESTION), tokenizer, {}) is None


FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("template", "arguments", "thinking"),
    [
        (QWEN3, {}, Thinking("<think>\n")),
        (QWEN3, {"enable_thinking": False}, None),
        (DEEPSEEK_R1, {}, Thinking()),
        (GPT_OSS, {}, Thinking("<|channel|>analysis<|message|>", "<|end|>", f"<|end|>{FINAL}", FINAL)),
    ],
)
def test_what_ends_a_thinking_is_what_the_template_writes(
    template: str, arguments: dict[str, Any], thinking: Thinking | None
) -> None:
    tokenizer = TemplateTokenizer(template)
    prompt = tokenizer.encode_chat(QUESTION, ChatOptions(arguments=arguments))
    assert thinking_after(prompt, tokenizer, arguments) == thinking


def test_a_template_may_lead_to_the_answer_in_its_own_words() -> None:
    template = QWEN3.replace(
        "'\\n</think>\\n\\n' -}}\n    {%- endif -%}\n    {{- content",
        "'\\n</think>\\nSo: ' -}}\n    {%- endif -%}\n    {{- content",
    )
    assert template != QWEN3
    tokenizer = TemplateTokenizer(template)
    found = thinking_after(tokenizer.encode_chat(QUESTION), tokenizer, {})
    assert found == Thinking("<think>\n", closing="\n</think>\nSo: ")


def test_channel_tokens_are_text_where_the_template_has_channels() -> None:
    def tokenizer(template: str) -> HuggingFaceTokenizer:
        wrapped: Any = byte_level_tokenizer()
        wrapped.add_tokens([*CHANNEL_TOKENS, CONSTRAIN_TOKEN, "<|return|>"], special_tokens=True)
        eos = frozenset({wrapped.convert_tokens_to_ids("<|return|>")})
        return HuggingFaceTokenizer(wrapped.backend_tokenizer, eos_ids=eos, chat_template=template)

    text = f"<|channel|>analysis<|message|>Two.<|end|>{FINAL}4<|return|>"
    shown, hidden = tokenizer(GPT_OSS), tokenizer(QWEN3)
    tokens = shown.encode_prompt(text)
    assert shown.tokenizer_id == hidden.tokenizer_id
    assert shown.decode(tokens) == text.removesuffix("<|return|>")
    assert shown.encode(text.removesuffix("<|return|>")) == tokens[:-1]
    assert hidden.decode(tokens) == "analysisTwo.assistantfinal4"
    call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}"
    assert shown.decode(shown.encode_prompt(call)) == call


@pytest.mark.parametrize(
    ("asked", "settings", "template", "max_tokens", "max_steps"),
    [
        ({}, {}, None, None, None),
        ({"token_budget": 7}, {"token_budget": 5}, None, 7, None),
        ({}, {"token_budget": 5, "max_steps": 2}, None, 5, 2),
        ({"max_steps": 3}, {"token_budget": 5, "max_steps": 2}, None, 5, 3),
        ({"token_budget": -1}, {"token_budget": 5}, None, None, None),
        ({"effort": "low"}, {"token_budget": 5}, None, 1024, None),
        ({"effort": "max"}, {"token_budget": 5}, None, None, None),
        ({"effort": "none"}, {"token_budget": 5}, None, 0, None),
        ({"token_budget": 9, "effort": "low"}, {}, None, 9, None),
        ({}, {"effort": "tiny", "effort_tokens": {"tiny": 3}}, None, 3, None),
        # The template gets the effort.
        ({"effort": "low"}, {}, GPT_OSS, None, None),
        ({"effort": "low"}, {"token_budget": 5}, GPT_OSS, 5, None),
        ({"effort": "none"}, {}, GPT_OSS, 0, None),
    ],
)
def test_a_request_goes_before_the_settings_and_a_budget_before_an_effort(
    asked: Mapping[str, Any],
    settings: Mapping[str, Any],
    template: str | None,
    max_tokens: int | None,
    max_steps: int | None,
) -> None:
    limit = ThinkingOptions(**asked).limit(Thinking(), ThinkingSettings(**settings), template)
    if max_tokens is None and max_steps is None:
        assert limit is None
    else:
        assert limit is not None
        assert (limit.max_tokens, limit.max_steps) == (max_tokens, max_steps)


def test_an_effort_without_a_budget_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(SettingsError, match="'huge': give one of none, minimal, low, medium"):
        ThinkingOptions(effort="huge").limit(Thinking(), ThinkingSettings(), None)


def test_the_template_gets_the_effort_and_no_effort_switches_thinking_off() -> None:
    settings = ThinkingSettings(effort="high")
    assert ThinkingOptions().chat_arguments({"a": 1}, settings) == {"a": 1, "reasoning_effort": "high"}
    none = ThinkingOptions(effort="none").chat_arguments({}, settings)
    assert none == {"enable_thinking": False, "reasoning_effort": "none"}
    kept = ThinkingOptions(effort="none").chat_arguments({"enable_thinking": True}, settings)
    assert kept["enable_thinking"] is True
    assert ThinkingOptions().chat_arguments({}, ThinkingSettings()) == {}


THOUGHT = "Two and two.\n\nThat makes four.\n\nI check: four.\n"


def thinker(**flags: Any) -> Accelerator:
    def engine(name: str) -> ScriptedEngine:
        script = WrittenAnswers({"two and two": (f"{THOUGHT}</think>\n\nIt is 4.",)}, thinking=True)
        return ScriptedEngine(name, script, tokenizer=ScriptedTokenizer(thinking=True))

    settings = load_settings(flags={"strategy.planner": False, **flags})
    return Accelerator(settings, engine("target"), engine("draft"), ExactVerifier())


@pytest.mark.parametrize("strategy", ["autoregressive", "prompt_lookup", "speculative", "lookahead"])
async def test_a_budget_of_the_settings_holds_for_a_question_and_the_answer_follows(strategy: str) -> None:
    async with thinker(**{"thinking.token_budget": 9, "thinking.answer_prompt": "It is "}) as accelerator:
        limited = await accelerator.answer("two and two", strategy=strategy)
        free = ThinkingOptions(token_budget=-1)
        whole = await accelerator.answer("two and two", strategy=strategy, thinking=free)
    assert limited.text == "Two and two.\n\n</think>\n\nIt is 4."
    assert limited.thinking == ThinkingOutcome(5, 1, "tokens")
    assert whole.text == f"{THOUGHT}</think>\n\nIt is 4."
    assert whole.thinking is None


async def test_a_limit_may_be_given_in_full_or_left_out() -> None:
    async with thinker(**{"thinking.max_steps": 1}) as accelerator:
        asked = accelerator.generator.request("two and two")
        by_settings = await accelerator.answer(asked)
        full = GenerationRequest(messages=asked.messages, thinking=ThinkingLimit(max_steps=2))
        given = await accelerator.answer(full)
        none = await accelerator.answer(GenerationRequest(messages=asked.messages, thinking=None))
        text = await accelerator.answer(GenerationRequest(prompt="user: two and two\n<think>\n"))
    assert by_settings.thinking == ThinkingOutcome(5, 1, "steps")
    assert given.thinking is not None
    assert (given.thinking.num_steps, given.thinking.ended_by) == (2, "steps")
    assert none.thinking is text.thinking is None
    assert none.text == text.text == f"{THOUGHT}</think>\n\nIt is 4."
