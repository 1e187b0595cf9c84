"""The packaged encoder: its input, its limits, and that a batch says what single calls say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from reason_spec.errors import SettingsError
from reason_spec.shipped import shipped_weights
from reason_spec.verifiers.evidence import Evidence
from reason_spec.verifiers.pair_encoder import (
    CONFIG,
    MAX_TOKENS,
    TOKENIZER,
    Calibration,
    PairEncoder,
    encode_pair,
)

QUESTION = "How many apples does Ana have?"
TOKENS = Tokenizer.from_file(str(shipped_weights("semantic") / TOKENIZER))
SEP = TOKENS.token_to_id("[SEP]")


def marked(drafted: str, target: str) -> list[str]:
    given = encode_pair(TOKENS, "", drafted, target)
    return [TOKENS.id_to_token(i) or "" for i, kind in zip(given.ids, given.types, strict=True) if kind]


def test_words_that_the_other_step_has_not_got_are_marked() -> None:
    assert marked("Ana counts apples", "Ana counted red apples") == ["red"]
    assert marked("Ana has 5", "Ben has 6") == ["ana", "5", "ben", "6"]
    assert marked("Same words", "same   WORDS") == []


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=200))
def test_steps_cannot_move_their_borders(drafted: str, target: str, question: str) -> None:
    given = encode_pair(TOKENS, question, f"{drafted}[[SEP]SEP]{target}", f"[CLS]{target}[SEP]")
    assert given.ids.count(SEP or 0) == 3
    assert len(given.ids) == len(given.types)


async def test_a_batch_says_what_single_calls_say() -> None:
    pairs = [(f"Ana has {n} apples.", f"So she has {n} {'red ' * n}apples.") for n in range(1, 12)]
    encoder = PairEncoder()
    await encoder.start()
    together = await asyncio.gather(*(encoder.probability(QUESTION, *pair) for pair in pairs))
    alone = [await encoder.probability(QUESTION, *pair) for pair in pairs]
    await encoder.close()
    assert together == alone
    assert all(found is not None and 0 <= found <= 1 for found in alone)


async def test_steps_that_are_too_long_have_no_probability() -> None:
    encoder = PairEncoder()
    await encoder.start()
    assert await encoder.probability(QUESTION, "one more " * MAX_TOKENS, "one less") is None
    await encoder.close()


async def test_it_starts_again_after_it_was_closed() -> None:
    encoder = PairEncoder()
    for _ in range(2):
        await encoder.start()
        assert await encoder.probability(QUESTION, "Ana has 5.", "She has 5.") is not None
        await encoder.close()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        '{"slope": 1}',
        '{"slope": 1, "offset": "x", "threshold": 1}',
        '{"slope": 1, "offset": 0, "threshold": 1, "weights": {"luck": 1}}',
        '{"slope": 1, "offset": 0, "threshold": 1, "weights": [1]}',
    ],
)
def test_a_folder_without_an_encoder_is_refused_with_its_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / CONFIG).write_text(content)
    with pytest.raises(SettingsError, match=r"calibration\.json.*verifier train"):
        _ = PairEncoder(tmp_path).calibration


async def test_a_damaged_model_is_refused_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"slope": 1, "offset": 0, "threshold": 0.5}))
    (tmp_path / TOKENIZER).write_bytes((shipped_weights("semantic") / TOKENIZER).read_bytes())
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(SettingsError, match="holds no encoder of step pairs"):
        await PairEncoder(tmp_path).start()


NOTHING = Evidence(*[False] * len(Evidence._fields))


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_higher_logit_is_never_less_likely(one: float, other: float) -> None:
    calibration = Calibration(slope=1.3, offset=-0.4, threshold=0.5)
    low, high = sorted((one, other))
    assert 0 <= calibration.probability(low, NOTHING) <= calibration.probability(high, NOTHING) <= 1


@given(st.floats(-20, 20), st.sampled_from(Evidence._fields))
def test_the_packaged_weights_follow_what_is_seen(logit: float, name: str) -> None:
    calibration = PairEncoder().calibration
    seen = calibration.probability(logit, NOTHING._replace(**{name: True}))
    if name.startswith("same"):
        assert seen > calibration.probability(logit, NOTHING)
    else:
        assert seen < calibration.probability(logit, NOTHING)


def test_a_folder_from_before_the_weights_is_read(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"slope": 1, "offset": 0, "threshold": 0.5}')
    assert PairEncoder(tmp_path).calibration.probability(0.0, NOTHING._replace(other_words=True)) == 0.5
