"""The tokenizer: any text survives it, and the words of the problems are single tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reason_spec.pair.generator import make_problem
from reason_spec.pair.model import SHAPES, new_model, save_model
from reason_spec.pair.tokenizer import END_TOKEN, PAD_TOKEN, START_TOKEN, build_tokenizer, chat_prompt
from reason_spec.pair.wording import lexicon


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@given(st.text())
def test_any_text_comes_back_unchanged(text: str) -> None:
    ids = tokenizer().encode(text)
    assert tokenizer().decode(ids) == text
    assert all(0 <= token < len(tokenizer()) for token in ids)


@given(st.binary())
def test_no_byte_is_unknown(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    assert tokenizer().decode(tokenizer().encode(text)) == text


def test_every_word_of_the_problems_is_one_token() -> None:
    assert len(lexicon()) > 300
    assert [word for word in lexicon() if len(tokenizer().encode(word)) != 1] == []


@given(st.integers(0, 10**12))
def test_numbers_are_split_into_digits(number: int) -> None:
    assert tokenizer().convert_ids_to_tokens(tokenizer().encode(str(number))) == list(str(number))


def test_a_problem_has_no_pieces_of_words() -> None:
    problem = make_problem("test", 0, 0)
    pieces = [tokenizer().decode([token]).strip() for token in tokenizer().encode(problem.question)]
    assert [p for p in pieces if p.isalpha()] == re.findall("[A-Za-z]+", problem.question)


def test_a_step_can_end_inside_a_token() -> None:
    assert len(tokenizer().encode(".\n\n")) == 1
    assert len(tokenizer().encode("Ana has 3 cards.\n\nBen")) == 7


def test_encoding_steps_one_by_one_equals_encoding_the_solution() -> None:
    for index in range(30):
        problem = make_problem("test", 0, index)
        pieces = [step + "\n\n" for step in problem.steps[:-1]] + [problem.steps[-1]]
        joined = [token for piece in pieces for token in tokenizer().encode(piece)]
        assert joined == tokenizer().encode(problem.solution)


def test_the_tokenizer_is_built_the_same_every_time() -> None:
    assert build_tokenizer().get_vocab() == tokenizer().get_vocab()


def test_auto_tokenizer_loads_it_with_its_chat_template(tmp_path: Path) -> None:
    save_model(new_model(SHAPES["draft"], tokenizer(), seed=0), tokenizer(), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "How many cards does Ana have?"}]
    text = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == chat_prompt("How many cards does Ana have?")
    assert (loaded.pad_token, loaded.eos_token) == (PAD_TOKEN, END_TOKEN)
    ids = loaded.encode(text)
    assert ids[0] == loaded.convert_tokens_to_ids(START_TOKEN)
    assert ids == tokenizer().encode(text)
    assert START_TOKEN not in loaded.decode(ids, skip_special_tokens=True)
