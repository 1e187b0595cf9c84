"""What a chat template leaves out becomes text; answers that have to call are bound to do so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reason_spec.chat.messages import normalised
from reason_spec.chat.tools import (
    TemplateAbilities,
    abilities_of,
    calls_grammar,
    names_of,
    offered_tools,
    render_messages,
)
from reason_spec.engines.scripted import ScriptedTokenizer
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from tests.chat.scripted import ADD, LOOK
from tests.engines.tiny_models import EOS, byte_level_tokenizer

ALL = TemplateAbilities(system=True, tools=True, calls=True, results=True)
NOTHING = TemplateAbilities(system=False, tools=False, calls=False, results=False)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
STRICT = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('roles') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
FULL = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n"
    "{% endfor %}"
)
CONVERSATION = normalised(
    [
        {"role": "user", "content": "2 and 2?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning": "Hm.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "tool", "tool_call_id": "2", "content": "5"},
        {"role": "user", "content": "And?"},
    ]
)


def tokenizer_with(template: str | None) -> HuggingFaceTokenizer:
    wrapped: Any = byte_level_tokenizer()
    eos = frozenset({wrapped.convert_tokens_to_ids(EOS)})
    return HuggingFaceTokenizer(wrapped.backend_tokenizer, eos_ids=eos, chat_template=template)


@pytest.mark.parametrize(
    ("template", "abilities"),
    [
        (FULL, ALL),
        (PLAIN, TemplateAbilities(system=True, tools=False, calls=False, results=True)),
        (STRICT, NOTHING),
        (None, TemplateAbilities(system=True, tools=False, calls=False, results=True)),
    ],
)
def test_what_a_template_shows_is_found_out(template: str | None, abilities: TemplateAbilities) -> None:
    assert abilities_of(tokenizer_with(template)) == abilities


def test_the_scripted_model_shows_calls_and_results_and_no_tools() -> None:
    assert abilities_of(ScriptedTokenizer()) == TemplateAbilities(
        system=True, tools=False, calls=True, results=True
    )


def test_a_template_that_shows_all_is_left_to_itself() -> None:
    assert render_messages(CONVERSATION, [ADD], ALL) == CONVERSATION


def test_what_a_template_leaves_out_becomes_text() -> None:
    made = render_messages(
        CONVERSATION, [ADD], TemplateAbilities(system=True, tools=False, calls=False, results=False)
    )
    system, user, assistant, result = made
    assert system["role"] == "system"
    assert json.dumps(ADD) in system["content"]
    assert "<tool_call>" in system["content"]
    assert user == CONVERSATION[0]
    assert assistant["content"].startswith("I add.\n<tool_call>")
    assert json.loads(assistant["content"].split("<tool_call>")[1].split("</tool_call>")[0]) == {
        "name": "add",
        "arguments": {"a": 2},
    }
    assert assistant["reasoning_content"] == "Hm."
    # Turns alternate, as many templates ask for.
    assert result["role"] == "user"
    assert result["content"].count("<tool_response>") == 2
    assert result["content"].endswith("And?")


def test_tools_are_described_where_there_is_a_place() -> None:
    system = normalised([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 and 2?"}])
    no_tools = TemplateAbilities(system=True, tools=False, calls=True, results=True)
    (first, second) = render_messages(system, [ADD], no_tools)
    assert first["content"].startswith("Be brief.\n\n")
    assert second == system[1]
    (only, *_) = render_messages(CONVERSATION, [ADD], NOTHING)
    assert only["role"] == "user"
    assert only["content"].endswith("2 and 2?")


def test_every_template_takes_what_is_made_for_it() -> None:
    for template in (FULL, PLAIN, STRICT, None):
        tokenizer = tokenizer_with(template)
        made = render_messages(CONVERSATION, [ADD], abilities_of(tokenizer))
        assert "2 and 2?" in tokenizer.decode_prompt(tokenizer.encode_chat(made))


def test_the_choice_of_tools_bounds_what_is_offered() -> None:
    tools = [ADD, LOOK]
    assert names_of(offered_tools(tools, "auto")) == ["add", "look"]
    assert names_of(offered_tools(tools, "required")) == ["add", "look"]
    assert names_of(offered_tools(tools, "look")) == ["look"]
    assert offered_tools(tools, "none") == ()
    assert offered_tools([], "auto") == ()


SCHEMA = {
    "properties": {"a": {"type": "integer"}, "n": {"$ref": "#/$defs/N"}},
    "required": ["a"],
    "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
}
TREE = {"type": "function", "function": {"name": "tree", "parameters": SCHEMA}}
QUOTED = {"type": "function", "function": {"name": 'a"b'}}
ONE = '<tool_call>{"name":"tree","arguments":{"a":1,"n":{"next":{}}}}</tool_call>'
TWO = '\n<tool_call>\n{"name": "a\\"b", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("parallel", "answer_schema", "allowed", "refused"),
    [
        (True, None, [ONE, TWO, ONE + TWO], ["", "So.", '{"x": 1}', ONE + "."]),
        (False, None, [ONE, TWO], [ONE + TWO]),
        (
            True,
            '{"type": "object", "properties": {"x": {"type": "number"}}}',
            [ONE + TWO, '{"x": 1}'],
            ["{", "1"],
        ),
    ],
)
def test_a_grammar_allows_calls_and_nothing_else(
    parallel: bool, answer_schema: str | None, allowed: list[str], refused: list[str]
) -> None:
    constraints = pytest.importorskip("reason_spec.engines.constraints")
    pytest.importorskip("llguidance")
    tools = offered_tools([TREE, QUOTED], "required")
    constraint = calls_grammar(tools, parallel=parallel, answer_schema=answer_schema)
    compiler = constraints.ConstraintCompiler(constraints.ByteVocabulary(), constraints.ByteVocabulary.size)
    for text in [*allowed, *refused, ONE.replace('"a":1,', ""), ONE.replace("tree", "three")]:
        tokens = (*text.encode(), constraints.ByteVocabulary.end)
        assert (compiler.compile(constraint).num_allowed(tokens) == len(tokens)) == (text in allowed), text
