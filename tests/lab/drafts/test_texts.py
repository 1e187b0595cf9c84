"""Texts are held out by prompt, batched once each, and tell which tokens a trimmed head keeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.errors import DataError
from reason_spec.evaluation.outcome import StepRecord
from reason_spec.lab.drafts.texts import TrainingText, batches, frequent_tokens, hold_out, texts_of
from reason_spec.settings import load_settings
from reason_spec.types import Origin, Problem
from tests.engines.thinking_templates import QWEN3
from tests.engines.tiny_models import save_model
from tests.evaluation.synthetic import make_outcome

tokens = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(tuple)
texts = st.lists(st.builds(TrainingText, tokens, tokens), min_size=1, max_size=40)


@given(texts, st.integers(8, 200), st.integers(0, 5))
def test_every_text_is_in_one_batch_that_is_not_too_large(
    some: list[TrainingText], max_tokens: int, seed: int
) -> None:
    found = list(batches(some, max_tokens, seed))
    assert Counter(text for batch in found for text in batch) == Counter(some)
    for batch in found:
        assert len(batch) == 1 or max(map(len, batch)) * len(batch) <= max_tokens
    assert found == list(batches(some, max_tokens, seed))


@given(texts, st.floats(0.01, 0.6))
def test_no_prompt_is_both_trained_on_and_held_out(some: list[TrainingText], share: float) -> None:
    if len({text.prompt for text in some}) < 2:
        with pytest.raises(DataError, match="two prompts"):
            hold_out(some, share)
        return
    trained, held = hold_out(some, share)
    assert trained
    assert held
    assert not {text.prompt for text in trained} & {text.prompt for text in held}
    assert Counter(trained) + Counter(held) == Counter(some)


@given(texts, st.sets(st.integers(31, 39), max_size=3), st.integers(1, 50))
def test_a_trimmed_head_keeps_special_and_frequent_tokens(
    some: list[TrainingText], always: set[int], size: int
) -> None:
    kept = frequent_tokens(some, always, size, limit=40)
    assert kept == sorted(set(kept))
    assert len(kept) == min(size, 40)
    if size >= len(always):
        assert always <= set(kept)
        counts = Counter(token for text in some for token in (*text.prompt, *text.answer))
        least = min((counts[token] for token in kept if token in counts), default=max(counts.values()))
        assert all(count <= least for token, count in counts.items() if token not in kept)


def step(origin: Origin, *tokens: int) -> StepRecord:
    return StepRecord("", origin, len(tokens), "boundary", None, tokens)


@pytest.mark.parametrize(("effort", "ending"), [("none", "<think>\n\n</think>\n\n"), ("low", "assistant\n")])
def test_texts_are_the_targets_own_words_after_what_it_was_given(
    tmp_path: Path, effort: str, ending: str
) -> None:
    target = save_model("llama", tmp_path / "target")
    (target / "chat_template.jinja").write_text(QWEN3)
    settings = load_settings(flags={"target.model": str(target), "thinking.effort": effort})
    own, given = step("target", 65), step("inserted", 60)
    outcomes = [
        make_outcome(0, steps=(own, step("target", 66, 67))),
        make_outcome(0, steps=(given, own, step("inserted", 61), step("target", 66))),
        make_outcome(0, steps=(given,)),
        make_outcome(1, steps=(own,)),
    ]
    plain, limited = texts_of(settings, [Problem("p0", "How many?")], outcomes)
    assert plain.answer == (65, 66, 67)
    assert limited == TrainingText((*plain.prompt, 60), (65,))
    assert load_tokenizer(str(target)).decode_prompt(plain.prompt).endswith(ending)
