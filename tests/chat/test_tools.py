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
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer
from tests.engines.tiny_models import EOS, byte_level_tokenizer

ALL = TemplateAbilities(system=True, tools=True, calls=True, results=True, several_calls=True)
NOTHING = TemplateAbilities(system=False, tools=False, calls=False, results=False, several_calls=False)
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
        (PLAIN, TemplateAbilities(system=True, tools=False, calls=False, results=True, several_calls=False)),
        (STRICT, NOTHING),
        (None, TemplateAbilities(system=True, tools=False, calls=False, results=True, several_calls=False)),
    ],
)
def test_what_a_template_shows_is_found_out(template: str | None, abilities: TemplateAbilities) -> None:
    assert abilities_of(tokenizer_with(template)) == abilities


def test_the_scripted_model_shows_calls_and_results_and_no_tools() -> None:
    assert abilities_of(ScriptedTokenizer()) == TemplateAbilities(
        system=True, tools=False, calls=True, results=True, several_calls=True
    )


def test_a_template_that_shows_all_is_left_to_itself() -> None:
    assert render_messages(CONVERSATION, [ADD], ALL) == CONVERSATION


def test_what_a_template_leaves_out_becomes_text() -> None:
    made = render_messages(
        CONVERSATION,
        [ADD],
        TemplateAbilities(system=True, tools=False, calls=False, results=False, several_calls=False),
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


def calls_turn(*names: str, **more: str) -> dict[str, Any]:
    calls = [
        {"id": f"call {name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    return {"role": "assistant", "tool_calls": calls, **more}


ONE_CALL = TemplateAbilities(system=True, tools=True, calls=True, results=True, several_calls=False)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["call look", "call add"], ["add", "2", "look", "1"]),
        ([None, None], ["add", "1", "look", "2"]),
        (["call look", None], ["add", "2", "look", "1"]),
        ([None, "call add"], ["add", "2", "look", "1"]),
        (["another", "call add", None], ["add", "2", "look", "1", "3"]),
        (["call look"], ["add", "look", "1"]),
        (["call add", "call look", "call look"], ["add", "1", "look", "2", "3"]),
        ([], ["add", "look"]),
    ],
)
def test_each_of_several_calls_is_a_turn_with_its_result(ids: list[str | None], expected: list[str]) -> None:
    results = [
        {"role": "tool", "content": str(number), **({"tool_call_id": id_} if id_ else {})}
        for number, id_ in enumerate(ids, start=1)
    ]
    asked = {"role": "user", "content": "?"}
    conversation = normalised([asked, calls_turn("add", "look", reasoning="Hm."), *results, asked])
    made = render_messages(conversation, [ADD, LOOK], ONE_CALL)
    first, messages, last = made[0], made[1:-1], made[-1]
    assert (first, last) == (conversation[0], conversation[-1])
    shown = [
        message["content"] if message["role"] == "tool" else message["tool_calls"][0]["function"]["name"]
        for message in messages
    ]
    assert shown == expected
    thoughts = [message.get("thinking") for message in messages if message["role"] == "assistant"]
    assert thoughts == ["Hm.", None], "the thinking is shown once"
    num_calls = [len(message.get("tool_calls", ())) for message in messages if message["role"] == "assistant"]
    assert num_calls == [1, 1]


def test_gpt_oss_reads_all_calls_of_a_turn() -> None:
    tokenizer = TemplateTokenizer(GPT_OSS)
    abilities = abilities_of(tokenizer)
    assert abilities == ONE_CALL
    results = [
        {"role": "tool", "tool_call_id": f"call {name}", "content": name.upper()} for name in ("look", "add")
    ]
    conversation = normalised([{"role": "user", "content": "?"}, calls_turn("add", "look"), *results])
    shown = tokenizer.decode_prompt(tokenizer.encode_chat(render_messages(conversation, [ADD], abilities)))
    parts = ["to=functions.add", "functions.add to=assistant", "ADD"]
    parts += [part.replace("add", "look").replace("ADD", "LOOK") for part in parts]
    places = [shown.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_tools_are_described_where_there_is_a_place() -> None:
    system = normalised([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 and 2?"}])
    no_tools = TemplateAbilities(system=True, tools=False, calls=True, results=True, several_calls=True)
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
