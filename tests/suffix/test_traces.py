"""Files of past conversations: what is read, what is refused and how, and the tokens that come of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reason_spec.chat.messages import normalised
from reason_spec.engines.scripted import ScriptedTokenizer
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.errors import DataError, EngineError
from reason_spec.pair import embedded_path
from reason_spec.suffix.base import FindEnd, Proposal, Source, StepProposal
from reason_spec.suffix.rendering import ConversationEncoder, learn
from reason_spec.suffix.traces import Conversation, TraceCall, TraceMessage, read_traces

CALL = {"type": "function", "id": "c1", "function": {"name": "look_up", "arguments": '{"id": 7}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Who is"}, {"type": "text", "text": "number 7?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"name": "Ann"}'},
    {"role": "assistant", "content": "Ann is number 7.", "reasoning": "It says so."},
    {"role": "user", "content": "Thanks."},
]


def write_lines(path: Path, *values: object) -> Path:
    path.write_text(
        "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)
    )
    return path


def read_one(path: Path, *values: object) -> Conversation:
    (conversation,) = read_traces(write_lines(path, *values)).conversations
    return conversation


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


@pytest.fixture(scope="module")
def embedded() -> HuggingFaceTokenizer:
    return load_tokenizer(str(embedded_path("target")))


# Reading -------------------------------------------------------------------------------------


def test_parts_of_a_text_are_joined_as_in_a_served_prompt() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Look up order"}, "A17"]}
    assert TraceMessage.model_validate(message).text == normalised([message])[0]["content"]


def test_results_of_tau_bench_are_read_with_task_and_trial(tmp_path: Path) -> None:
    results = [{"task_id": 3, "trial": 1, "reward": 0.0, "info": {}, "traj": MESSAGES}]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results, indent=1))
    (conversation,) = read_traces(path).conversations
    assert (conversation.task, conversation.trial) == ("3", "1")
    assert len(conversation.messages) == len(MESSAGES)


def test_a_trajectory_of_swe_agent_is_one_conversation(tmp_path: Path) -> None:
    observation = {"role": "user", "content": "app.py", "message_type": "observation", "agent": "main"}
    action = "find_file app.py\n"
    history = [
        {"role": "system", "content": "Fix it.", "agent": "main", "message_type": "system_prompt"},
        {"role": "assistant", "content": f"Look.\n```\n{action}```", "thought": "Look.", "action": action},
        observation,
        {"role": "assistant", "content": "", "action": "view", "tool_calls": [CALL]},
        {"role": "tool", "content": [{"type": "text", "text": "seven"}], "tool_call_ids": ["c1"]},
    ]
    path = tmp_path / "repo__repo-12.traj"
    path.write_text(json.dumps({"trajectory": [], "history": history, "info": {}}, indent=2))
    (conversation,) = read_traces(path).conversations
    assert conversation.task == "repo__repo-12"
    _, first, seen, second, result = conversation.messages
    assert first.written_calls == (TraceCall(name="find_file", arguments={"command": "find_file app.py"}),)
    assert first.text_with_calls == first.text, "the text already holds the command"
    assert seen.is_observation
    assert [call.name for call in second.calls] == ["look_up"]
    assert (result.role, result.text) == ("tool", "seven")


def test_a_damaged_trajectory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.traj"
    path.write_text('{"history": [')
    with pytest.raises(DataError, match=r"a\.traj, line 1"):
        read_traces(path)


def test_messages_in_every_form_are_read(file: Path) -> None:
    expected = (
        TraceMessage(role="system", text="Be brief."),
        TraceMessage(role="user", text="Who is\nnumber 7?"),
        TraceMessage(role="assistant", calls=(TraceCall(name="look_up", arguments={"id": 7}, id="c1"),)),
        TraceMessage(role="tool", text='{"name": "Ann"}', call_id="c1"),
        TraceMessage(role="assistant", text="Ann is number 7.", reasoning="It says so."),
        TraceMessage(role="user", text="Thanks."),
    )
    for line in ({"messages": MESSAGES}, MESSAGES, {"task_id": 3, "messages": MESSAGES}):
        assert read_one(file, line).messages == expected
    read = read_traces(write_lines(file, MESSAGES, "", {"messages": MESSAGES}))
    assert [conversation.line for conversation in read.conversations] == [1, 3]
    sources = [message.source for message in expected]
    assert sources == ["prompt", "prompt", "output", "tool", "output", "prompt"]
    assert read.conversations[0].num_answers == 2


def test_flat_tool_calls_are_read(file: Path) -> None:
    flat = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    bare = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    read = read_one(file, [flat, bare]).messages
    assert all(message.calls == (TraceCall(name="f", arguments={"a": 1}),) for message in read)
    assert read[0].text_with_calls == '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_arguments_that_are_no_json_object_stay_as_they_are(file: Path) -> None:
    call = {"name": "f", "arguments": "not json"}
    (message,) = read_one(file, [{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.calls == (TraceCall(name="f", arguments="not json"),)


def test_an_array_of_conversations_is_read(file: Path) -> None:
    array = file.with_suffix(".json")
    array.write_text(json.dumps([{"messages": MESSAGES}, MESSAGES]))
    assert len(read_traces(array).conversations) == 2


def test_gzip_is_read_and_damage_in_it_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "traces.jsonl.gz"
    content = gzip.compress((json.dumps(MESSAGES) + "\n").encode() * 50)
    packed.write_bytes(content)
    assert len(read_traces(packed).conversations) == 50
    packed.write_bytes(content[:-30])
    with pytest.raises(DataError, match=r"traces\.jsonl\.gz, line \d+: the gzip data is damaged"):
        read_traces(packed)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not valid JSON"),
        ("5", "field 'line' is unusable"),
        ({"question": "x"}, "field 'messages' is unusable .Field required"),
        ({"messages": []}, "field 'messages' is unusable .*at least 1 item"),
        ({"messages": "x"}, "field 'messages' is unusable .*tuple"),
        ({"messages": ["x"]}, r"field 'messages\.0' is unusable"),
        ([{"content": "x"}], r"field 'messages\.0\.role' is unusable .Field required"),
        ([{"role": "robot", "content": "x"}], r"role' is unusable .*'system'.*'robot'"),
        ([{"role": "user", "content": 5}], r"content' is unusable .*string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            r"messages\.0\.content' is unusable .*not text; only texts are learned.*image_url",
        ),
        ([{"role": "assistant", "tool_calls": [{"id": 1}]}], r"tool_calls\.0\.name' is unusable"),
        ([{"role": "assistant", "tool_calls": 5}], "tool_calls' is unusable"),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 5}]}],
            r"arguments\.",
        ),
        ([{"role": "assistant", "content": "a", "reasoning": 5}], "reasoning' is unusable"),
        ('[{"role": "user", "content": "\\ud800"}]', "half a surrogate"),
        ('[{"role": "assistant", "tool_calls": [{"name": "f\\ud800"}]}]', "half a surrogate"),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": "\\ud800"}'}]}],
            "half a surrogate",
        ),
    ],
)
def test_an_unusable_line_is_named_with_its_field_and_can_be_left_out(
    file: Path, line: object, said: str
) -> None:
    write_lines(file, MESSAGES, line, MESSAGES)
    with pytest.raises(DataError, match=r"traces\.jsonl, line 2: .*" + said + r".*--skip-bad"):
        read_traces(file)
    read = read_traces(file, skip_bad=True)
    assert [conversation.line for conversation in read.conversations] == [1, 3]
    assert [bad.line for bad in read.bad_lines] == [2]


def test_a_file_without_a_conversation_is_refused(file: Path) -> None:
    with pytest.raises(DataError, match="holds no conversation"):
        read_traces(write_lines(file))
    with pytest.raises(DataError, match="holds no conversation; line 1: field 'messages'"):
        read_traces(write_lines(file, {"a": 1}), skip_bad=True)
    with pytest.raises(DataError, match="one conversation a line"):
        read_traces(write_lines(file.with_suffix(".csv"), "a,b"))


# Tokens --------------------------------------------------------------------------------------


class Listening:
    """A session that checks what it is told: the whole prompt each time, and answers behind it."""

    def __init__(self) -> None:
        self.prompts: list[tuple[tuple[Source, tuple[int, ...]], ...]] = []
        self.outputs: list[tuple[int, ...]] = []

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        self.prompts.append(tuple((source, tuple(tokens)) for source, tokens in segments))

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        assert source == "output"
        self.outputs.append(tuple(tokens))

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        raise AssertionError

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def played(conversation: Conversation, tokenizer: Any) -> Listening:
    session = Listening()
    learn(conversation, ConversationEncoder(tokenizer), session)
    return session


def flat(prompt: Sequence[tuple[Source, Sequence[int]]]) -> tuple[int, ...]:
    return tuple(token for _, tokens in prompt for token in tokens)


def test_a_conversation_has_the_tokens_of_a_real_one(file: Path, embedded: HuggingFaceTokenizer) -> None:
    questions = ["Ann has 3 apples.", "And Bob?"]
    answers = ["She has 3.\n\nSo 3.", "None."]
    pairs = zip(questions, answers, strict=True)
    told = [
        {"role": role, "content": text}
        for question, answer in pairs
        for role, text in (("user", question), ("assistant", answer))
    ]
    session = played(read_one(file, told), embedded)
    prompts = [flat(prompt) for prompt in session.prompts]
    assert prompts == [embedded.encode_chat(told[:1]), embedded.encode_chat(told[:3])]  # type: ignore[arg-type]
    (eos,) = embedded.eos_ids
    assert session.outputs == [(*embedded.encode(answer), eos) for answer in answers]
    assert prompts[1][: len(prompts[0]) + len(session.outputs[0])] == prompts[0] + session.outputs[0]


def test_each_token_has_the_source_of_its_message(file: Path, embedded: HuggingFaceTokenizer) -> None:
    session = played(read_one(file, MESSAGES), embedded)
    first, second, last = session.prompts
    assert [source for source, _ in first] == ["prompt"]
    assert [source for source, _ in second] == ["prompt", "output", "tool"]
    assert [source for source, _ in last] == ["prompt", "output", "tool", "output", "prompt"]
    assert "look_up" in embedded.decode(second[1][1])
    assert "Ann" in embedded.decode(second[2][1])
    assert embedded.decode(last[3][1]) == "Ann is number 7."
    assert "Thanks." in embedded.decode(last[4][1])
    # The last prompt was never answered.
    assert len(session.outputs) == 2


def test_new_messages_of_several_sources_are_told_apart(file: Path, embedded: HuggingFaceTokenizer) -> None:
    told = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Calling."},
        {"role": "tool", "content": "result"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "Done."},
    ]
    second = played(read_one(file, told), embedded).prompts[1]
    assert [source for source, _ in second] == ["prompt", "output", "tool", "prompt"]
    assert "result" in embedded.decode(second[2][1])
    assert "Go on." not in embedded.decode(second[2][1])


class Template:
    """A tokenizer of characters with a chat template of its own making."""

    eos_ids = frozenset({ord("|")})

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def encode_chat(self, messages: Sequence[Any]) -> tuple[int, ...]:
        return self.encode("".join(map(self.show, messages)) + "a:")

    def show(self, message: Any) -> str:
        if message["role"] == "tool":
            raise EngineError("no tools")
        calls = "".join(f"@{call['function']['name']}" for call in message.get("tool_calls", ()))
        return f"{message['role'][0]}:{message['content']}{calls}|"


class FirstCall(Template):
    """Shows the first call of a turn alone, as gpt-oss's template does, and results."""

    def show(self, message: Any) -> str:
        role = {"tool": "result"}.get(message["role"], message["role"])
        calls = message.get("tool_calls", ())[:1]
        return super().show({**message, "role": role, "tool_calls": calls})


class Rewriting(Template):
    """Shows the reasoning of the last answer only, as reasoning models do."""

    def encode_chat(self, messages: Sequence[Any]) -> tuple[int, ...]:
        shown = [
            {**one, "content": f"<{one['reasoning_content']}>{one['content']}"}
            if one.get("reasoning_content") and index == len(messages) - 1
            else one
            for index, one in enumerate(messages)
        ]
        return super().encode_chat(shown)


def test_the_template_shows_calls_and_refused_tool_results_become_the_users(file: Path) -> None:
    session = played(read_one(file, MESSAGES), Template())
    texts = ["".join(map(chr, output)) for output in session.outputs]
    assert texts == ["@look_up|", "Ann is number 7.|"]
    prompt = "".join(map(chr, flat(session.prompts[1])))
    assert prompt.endswith('u:{"name": "Ann"}|a:')
    assert session.prompts[1][-1][0] == "tool"


@pytest.mark.parametrize(
    ("results", "prompts", "outputs"),
    [
        (
            ["1", "2"],
            ["u:?|a:", "u:?|a:I look.@look|r:1|a:", "u:?|a:I look.@look|r:1|a:@add|r:2|a:"],
            ["I look.@look|", "@add|", "Done.|"],
        ),
        (
            ["1"],
            ["u:?|a:", "u:?|a:I look.@look|r:1|a:", "u:?|a:I look.@look|r:1|a:@add|a:"],
            ["I look.@look|", "@add|", "Done.|"],
        ),
    ],
)
def test_each_call_of_a_turn_is_learnt_where_the_template_shows_one(
    file: Path, results: list[str], prompts: list[str], outputs: list[str]
) -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("look", "add")]
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        *({"role": "tool", "content": result} for result in results),
        {"role": "assistant", "content": "Done."},
    ]
    session = played(read_one(file, messages), FirstCall())
    assert ["".join(map(chr, flat(prompt))) for prompt in session.prompts] == prompts
    assert ["".join(map(chr, output)) for output in session.outputs] == outputs


def test_reasoning_is_learnt_where_it_was_written_and_not_where_it_is_left_out(file: Path) -> None:
    session = played(read_one(file, [*MESSAGES, {"role": "assistant", "content": "Bye."}]), Rewriting())
    assert "".join(map(chr, session.outputs[1])) == "<It says so.>Ann is number 7.|"
    last = session.prompts[2]
    assert "It says so." not in "".join(map(chr, flat(last)))
    assert flat(last)[-len("u:Thanks.|a:") :] == tuple(map(ord, "u:Thanks.|a:"))


def test_a_tokenizer_without_a_template_learns_the_texts(file: Path) -> None:
    tokenizer = ScriptedTokenizer()
    session = played(read_one(file, [{"role": "assistant", "content": "Hello."}, *MESSAGES]), tokenizer)
    assert session.prompts[0] == ()
    assert "Hello." in tokenizer.decode(session.outputs[0])
    assert "look_up" in tokenizer.decode(session.outputs[1])


def test_a_refused_conversation_names_its_line(file: Path) -> None:
    class Strict(Template):
        def show(self, message: Any) -> str:
            if message["role"] == "system":
                raise EngineError("the model's chat template refused the conversation: no system")
            return super().show(message)

    with pytest.raises(DataError, match="line 1: the model's chat template refused"):
        played(read_one(file, MESSAGES), Strict())
