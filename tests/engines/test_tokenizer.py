"""Tokens have bytes of their own, and their concatenation is the text."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.chat_template import Message
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.errors import EngineError
from tests.engines.tiny_models import EOS, byte_level_tokenizer


@functools.cache
def byte_level() -> tuple[HuggingFaceTokenizer, Any]:
    wrapped = byte_level_tokenizer()
    eos = frozenset({wrapped.convert_tokens_to_ids(EOS)})
    return HuggingFaceTokenizer(wrapped.backend_tokenizer, eos_ids=eos), wrapped


@functools.cache
def sentence_piece() -> tuple[HuggingFaceTokenizer, Any]:
    """A tokenizer as Llama 2's: spaces as a visible mark, one put in front, bytes for the rest."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz.,!0123456789", "▁t", "he", "▁the", "é"]:
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return HuggingFaceTokenizer(tokenizer, eos_ids=frozenset({2})), tokenizer


texts = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the \n.é12")))


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@given(text=texts)
def test_encoding_and_decoding_give_the_text_back(make: Any, text: str) -> None:
    tokenizer, _ = make()
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert b"".join(tokenizer.token_bytes(token) for token in tokens) == text.encode()


@given(tokens=st.lists(st.integers(0, 269), max_size=30))
def test_decoding_any_tokens_agrees_with_transformers_byte_level(tokens: list[int]) -> None:
    tokenizer, wrapped = byte_level()
    assert tokenizer.decode(tokens) == wrapped.decode(tokens, skip_special_tokens=True)


@given(text=texts)
def test_decoding_agrees_with_tokenizers_but_for_the_space_in_front(text: str) -> None:
    tokenizer, rust = sentence_piece()
    tokens = rust.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(tokens)
    assert decoded.removeprefix(" ") == rust.decode(tokens)


def test_a_step_is_encoded_as_the_middle_of_a_text() -> None:
    tokenizer, _ = sentence_piece()
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.encode(" the") == (tokenizer._rust.token_to_id("▁the"),)


def test_special_tokens_have_no_bytes_and_their_names_are_plain_text() -> None:
    tokenizer, wrapped = byte_level()
    (end,) = tokenizer.eos_ids
    assert tokenizer.token_bytes(end) == b""
    assert end not in tokenizer.encode(f"a{EOS}b")
    assert tokenizer.decode(tokenizer.encode(f"a{EOS}b")) == f"a{EOS}b"
    assert tokenizer.decode([*tokenizer.encode("a"), end]) == "a"
    think = wrapped.convert_tokens_to_ids("<think>")
    assert tokenizer.encode("<think>") == (think,)
    assert tokenizer.token_bytes(think) == b"<think>"


def test_ids_beyond_the_vocabulary_have_no_bytes() -> None:
    tokenizer, _ = byte_level()
    assert tokenizer.token_bytes(10_000) == b""
    assert tokenizer.decode([10_000]) == ""


def test_damaged_utf8_is_replaced() -> None:
    tokenizer, _ = byte_level()
    tokens = tokenizer.encode("é🙂")
    assert tokenizer.decode(tokens[:-1]).endswith("\ufffd")


def test_chats_are_rendered_as_transformers_renders_them(tmp_path: Path) -> None:
    _, wrapped = byte_level()
    wrapped.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?\n"}]
    expected = wrapped.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    expected = expected["input_ids"] if hasattr(expected, "keys") else expected
    assert list(tokenizer.encode_chat(messages)) == list(expected)  # type: ignore[arg-type]
    assert tokenizer.eos_ids == {wrapped.convert_tokens_to_ids(EOS)}


def test_ends_of_text_are_collected_from_all_places(tmp_path: Path) -> None:
    _, wrapped = byte_level()
    wrapped.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert load_tokenizer(str(tmp_path)).eos_ids == {3, 4, 5, wrapped.convert_tokens_to_ids(EOS)}


def test_the_id_follows_the_vocabulary_alone(tmp_path: Path) -> None:
    tokenizer, wrapped = byte_level()
    wrapped.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.tokenizer_id == tokenizer.tokenizer_id
    assert loaded.tokenizer_id != sentence_piece()[0].tokenizer_id


def test_a_model_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no tokenizer\.json.*save_pretrained"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(EngineError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nowhere"))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EngineError, match="cannot be read"):
        load_tokenizer(str(tmp_path))


# --- from the Hub ----------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hugging Face Hub does for files of a few models."""

    errors = {
        "org/gated": (403, "GatedRepo"),
        "org/absent": (404, "RepoNotFound"),
        "org/empty": (404, "EntryNotFound"),
    }

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        parts = self.path.strip("/").split("/")
        if len(parts) != 5 or parts[2] != "resolve":
            self.refuse(404, "")
            return
        model, revision, file = "/".join(parts[:2]), parts[3], parts[4]
        if model in self.errors:
            self.refuse(*self.errors[model])
        elif revision not in ("main", "0" * 40):
            self.refuse(404, "RevisionNotFound")
        elif model == "org/broken" and file == "config.json":
            self.refuse(403, "")
        elif file != "tokenizer.json":
            self.refuse(404, "EntryNotFound")
        else:
            body = byte_level()[0]._rust.to_str().encode()
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if code != "RepoNotFound":
            self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def load_in_new_process(models: list[tuple[str, str | None]], home: Path, **variables: str) -> list[str]:
    """What loading each model ends with; the Hub's address is read once by a process."""
    code = (
        "import json, sys\n"
        "from reason_spec.engines.tokenizer import load_tokenizer\n"
        "from reason_spec.errors import EngineError\n"
        "for model, revision in json.loads(sys.argv[1]):\n"
        "    try: print(load_tokenizer(model, revision).tokenizer_id)\n"
        "    except EngineError as error: print(error)\n"
    )
    names = {**os.environ, "HF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    result = subprocess.run(
        [sys.executable, "-c", code, json.dumps(models)],
        env=names,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_what_the_hub_refuses_is_named_with_its_remedy(hub: str, tmp_path: Path) -> None:
    whole, empty, gated, absent, no_revision, broken, no_id = load_in_new_process(
        [
            ("org/whole", None),
            ("org/empty", None),
            ("org/gated", None),
            ("org/absent", None),
            ("org/whole", "v9"),
            ("org/broken", None),
            ("no id!", None),
        ],
        tmp_path,
        HF_ENDPOINT=hub,
        HF_HUB_OFFLINE="0",
    )
    assert whole == byte_level()[0].tokenizer_id
    assert "'org/empty' has no tokenizer.json" in empty
    assert "access on request" in gated
    assert "hf auth login" in gated
    assert "no such model" in absent
    assert "no such revision" in no_revision
    assert "config.json of model 'org/broken' could not be fetched" in broken
    assert "403" in broken
    assert "neither a folder nor the id" in no_id


def test_without_the_hub_the_cache_is_enough_and_a_missing_tokenizer_says_so(
    hub: str, tmp_path: Path
) -> None:
    load_in_new_process([("org/whole", None)], tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    cached, missing = load_in_new_process(
        [("org/whole", None), ("org/other", None)], tmp_path, HF_HUB_OFFLINE="1"
    )
    assert cached == byte_level()[0].tokenizer_id
    assert "tokenizer.json of model 'org/other' could not be fetched" in missing
    assert "HF_HUB_OFFLINE" in missing


THINKING_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|start|>' + message.role + '\n' + message.content + '<|end|>' }}"
    "{%- endfor -%}{{ '<|start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}"
    "{%- elif opens_thought is defined -%}{{ '<think>\n' }}{%- endif -%}"
)
"""Thinking models begin an answer in three ways: freely, with an open thought, or with an empty one."""


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [
        ({}, "assistant\n"),
        ({"opens_thought": True}, "assistant\n<think>\n"),
        ({"enable_thinking": False}, "assistant\n<think>\n\n</think>\n\n"),
    ],
)
def test_prompts_of_thinking_models_are_built_as_tokens_once(
    tmp_path: Path, arguments: dict[str, bool], ending: str
) -> None:
    wrapped = byte_level_tokenizer()
    wrapped.chat_template = THINKING_TEMPLATE
    wrapped.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path), chat_arguments=arguments)
    messages: list[Message] = [{"role": "user", "content": "<think> 12?"}]
    tokens = tokenizer.encode_chat(messages)
    expected = wrapped.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **arguments)
    assert tokens == tuple(wrapped(expected, add_special_tokens=False).input_ids)
    assert tokenizer.decode_prompt(tokens).endswith(ending)
    think = wrapped.convert_tokens_to_ids("<think>")
    assert tokens.count(think) == 1 + ("<think>" in ending)


@pytest.mark.parametrize("arguments", [{}, {"opens_thought": True}, {"enable_thinking": False}])
def test_a_further_question_goes_on_where_the_answer_stopped(
    tmp_path: Path, arguments: dict[str, bool]
) -> None:
    """Prompt, answer and turn make the tokens of the whole conversation."""
    wrapped = byte_level_tokenizer()
    wrapped.chat_template = THINKING_TEMPLATE
    wrapped.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path), chat_arguments=arguments)
    first: Message = {"role": "user", "content": "12?"}
    answer: Message = {"role": "assistant", "content": "It is 12.\n\n"}
    second: Message = {"role": "user", "content": "Sure?"}
    # The template shows earlier answers without the thought that it begins new ones with.
    prompt = wrapped.apply_chat_template([first], add_generation_prompt=True, tokenize=False)
    joined = (
        tuple(wrapped(prompt, add_special_tokens=False).input_ids)
        + tokenizer.encode(answer["content"])
        + tokenizer.encode_turn(second["content"])
    )
    assert tokenizer.decode_prompt(joined) == wrapped.apply_chat_template(
        [first, answer, second], add_generation_prompt=True, tokenize=False, **arguments
    )


def test_a_model_without_a_template_is_asked_in_a_paragraph(tmp_path: Path) -> None:
    wrapped = byte_level_tokenizer()
    wrapped.chat_template = None
    wrapped.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode_turn("Sure?")) == "\n\nSure?\n"


def test_a_template_that_hides_answers_cannot_ask_about_them(tmp_path: Path) -> None:
    wrapped = byte_level_tokenizer()
    wrapped.chat_template = "{{ messages[-1].content }}"
    wrapped.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="omits earlier answers"):
        load_tokenizer(str(tmp_path)).encode_turn("Sure?")
