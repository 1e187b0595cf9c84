"""Padding: more layers, more cost, the same words, and no way to mistake it for training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from reason_spec.lab.pair.pad import PADDED_FROM, main, pad
from reason_spec.pair.decoding import complete, load_pair_model
from reason_spec.pair.generator import make_problem
from reason_spec.pair.tokenizer import chat_prompt
from tests.pair.tiny import save_tiny


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path / "source", 3)


def test_a_padded_model_is_deeper_and_writes_the_same(source: Path, tmp_path: Path) -> None:
    pad(source, 7, tmp_path / "padded")
    before, after = load_pair_model(source), load_pair_model(tmp_path / "padded")
    assert len(after.model.model.layers) == after.model.config.num_hidden_layers == 7
    tokens = torch.arange(5, 45)[None]
    assert torch.equal(before.model(tokens).logits, after.model(tokens).logits)
    prompts = [chat_prompt(make_problem("test", 0, i).question) for i in range(3)]
    assert complete(before, prompts, max_new_tokens=20) == complete(after, prompts, max_new_tokens=20)


def test_padding_is_told_and_counted_from_the_trained_depth(source: Path, tmp_path: Path) -> None:
    pad(source, 4, tmp_path / "once")
    pad(tmp_path / "once", 6, tmp_path / "twice")
    assert json.loads((tmp_path / "twice" / "config.json").read_text())[PADDED_FROM] == 2
    assert (
        "2 layers of this model were trained; 4 were added" in (tmp_path / "twice" / "README.md").read_text()
    )


def test_the_command_says_what_it_made(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--layers", "3", "--model", str(source), str(tmp_path / "padded")])
    assert "3 layers (padded)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("layers", "out", "message"),
    [("2", "new", "must be more than the 2 layers"), ("5", "source", "is not empty")],
)
def test_what_cannot_be_padded_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layers: str, out: str, message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--layers", layers, "--model", str(source), str(tmp_path / out)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as stopped:
        main(["--layers", "5", "--model", str(tmp_path / "empty"), str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "holds no model" in capsys.readouterr().err
