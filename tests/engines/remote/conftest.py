"""Fixtures of the remote engine's tests: a tokenizer, and servers that write one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.types import Prefix
from tests.engines.remote.answers import ANSWER
from tests.engines.upstream import Upstream


@pytest.fixture(scope="session")
def folder(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("qwen3")


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> HuggingFaceTokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="session")
def prompt(tokenizer: HuggingFaceTokenizer) -> Prefix:
    return Prefix(tokenizer.encode_chat([{"role": "user", "content": "How many?"}]))


@pytest.fixture(scope="session")
def answer(tokenizer: HuggingFaceTokenizer) -> tuple[int, ...]:
    return (*tokenizer.encode(ANSWER), *tokenizer.eos_ids)


@pytest.fixture
def make_upstream(
    tokenizer: HuggingFaceTokenizer, prompt: Prefix, answer: tuple[int, ...]
) -> Callable[..., Upstream]:
    start = prompt.to_tuple()
    marker = tokenizer.decode_prompt(start)

    def to_tokens(text: str) -> Sequence[int]:
        return (
            (*start, *tokenizer.encode(text.removeprefix(marker)))
            if text.startswith(marker)
            else (tokenizer.encode(text))
        )

    def continuation(tokens: Sequence[int]) -> Sequence[int]:
        """The rest of the answer behind our prompt, by its text: servers may be given either."""
        if tuple(tokens[: len(start)]) != start:
            return answer
        written = tuple(tokens[len(start) :])
        if answer[: len(written)] == written:
            return answer[len(written) :]
        text = tokenizer.decode(written)
        if not ANSWER.startswith(text):
            return answer
        return (*tokenizer.encode(ANSWER[len(text) :]), *tokenizer.eos_ids)

    def make(**options: Any) -> Upstream:
        return Upstream(continuation, tokenizer.decode, to_tokens, **options)

    return make
