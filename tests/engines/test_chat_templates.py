"""Chat templates are told of tools and arguments, leave a last message open, and fail with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.engines.chat_template import ChatOptions, Message
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import EngineError
from tests.engines.tiny_models import EOS, byte_level_tokenizer

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{{ mood }}{% endif %}"
)
QUESTION: Message = {"role": "user", "content": "How many?"}
BEGUN: Message = {"role": "assistant", "content": "  There are "}
TOOL = {"type": "function", "function": {"name": "count"}}


def tokenizer_with(template: str | None, **more: Any) -> HuggingFaceTokenizer:
    wrapped: Any = byte_level_tokenizer()
    eos = frozenset({wrapped.convert_tokens_to_ids(EOS)})
    return HuggingFaceTokenizer(wrapped.backend_tokenizer, eos_ids=eos, chat_template=template, **more)


def test_a_template_is_shown_and_told_of_tools_and_arguments() -> None:
    tokenizer = tokenizer_with(TEMPLATE, chat_arguments={"mood": "gay"})
    assert tokenizer.chat_template == TEMPLATE
    shown = tokenizer.render_chat([QUESTION], ChatOptions(tools=[TOOL], arguments={"mood": "calm"}))
    assert shown == "[count]<|start|>user\nHow many?\n<|start|>assistant\ncalm"
    assert tokenizer.render_chat([QUESTION]).endswith("assistant\ngay")


def test_a_last_message_is_left_open_where_its_text_ends() -> None:
    tokenizer = tokenizer_with(TEMPLATE)
    shown = tokenizer.render_chat([QUESTION, BEGUN], ChatOptions(continue_final=True))
    assert shown == "<|start|>user\nHow many?\n<|start|>assistant\n  There are "
    encoded = tokenizer.encode_chat([QUESTION, BEGUN], ChatOptions(continue_final=True))
    assert tokenizer.decode_prompt(encoded) == shown


def test_a_template_that_hides_the_last_message_cannot_go_on_with_it() -> None:
    tokenizer = tokenizer_with("{{ messages[0].content }}")
    with pytest.raises(EngineError, match="omits the last message"):
        tokenizer.render_chat([QUESTION, BEGUN], ChatOptions(continue_final=True))


def test_a_model_without_a_template_reads_paragraphs() -> None:
    tokenizer = tokenizer_with(None)
    assert tokenizer.decode_prompt(tokenizer.encode_chat([QUESTION, BEGUN])) == "How many?\n\n  There are \n"
    begun = tokenizer.encode_chat([QUESTION, BEGUN], ChatOptions(continue_final=True))
    assert tokenizer.decode_prompt(begun) == "How many?\n\n  There are "


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system') }}", "no system"),
        ("{% for k in messages[0].content | items %}{% endfor %}", "failed on the conversation"),
        ("{{ messages[5].content.x }}", "refused"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_whatever_a_template_does_is_said_as_an_error_of_the_conversation(template: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        tokenizer_with(template).render_chat([QUESTION])


def test_marks_of_the_models_turns_and_every_form_of_json_are_rendered() -> None:
    """`generation` marks what a training learns; transformers knows both."""
    template = (
        "{% for m in messages %}{% generation %}{{ m.role }}: {{ {'b': 1, 'a': 2} | "
        "tojson(separators=(',', ':'), sort_keys=True) }}\n{% endgeneration %}{% endfor %}"
    )
    assert tokenizer_with(template).render_chat([QUESTION]) == 'user: {"a":2,"b":1}\n'


def test_a_prompt_has_its_special_tokens_by_name_and_a_text_does_not() -> None:
    tokenizer = tokenizer_with(TEMPLATE)
    text = "<|start|>user"
    prompt = tokenizer.encode_prompt(text)
    assert tokenizer.decode_prompt(prompt) == text
    assert tokenizer.decode(prompt) == "user"
    assert tokenizer.decode(tokenizer.encode(text)) == text
