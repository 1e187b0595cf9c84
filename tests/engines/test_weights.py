from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines import digests
from reason_spec.engines.lora import CONFIG as ADAPTER_CONFIG
from reason_spec.engines.lora import WEIGHTS as ADAPTER_WEIGHTS
from reason_spec.engines.pruned import CONFIG as DRAFT_CONFIG
from reason_spec.engines.pruned import WEIGHTS as DRAFT_WEIGHTS
from reason_spec.engines.weights import digest_folder, digest_weights
from reason_spec.errors import ResumeError
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.settings import Settings, load_settings
from reason_spec.types import Problem
from tests.evaluation.test_store import make_outcome

PROBLEMS = (Problem("p0", "Question 0?", "0"),)


def write_model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"wEights"),
        ("model-00002-of-00002.safetensors", b"more"),
        ("config.json", b"{}"),
        ("tokenizer.json", b'{"a": 1}'),
        ("chat_template.jinja", b"{{ x }}"),
        ("modeling_own.py", b"x = 1"),
    ],
)
def test_whatever_changes_what_a_model_writes_changes_its_digest(
    tmp_path: Path, name: str, content: bytes
) -> None:
    before = digest_folder(write_model(tmp_path / "model"))
    (tmp_path / "model" / name).write_bytes(content)
    assert digest_folder(tmp_path / "model") != before


def test_what_does_not_change_a_model_leaves_its_digest(tmp_path: Path) -> None:
    before = digest_folder(write_model(tmp_path / "model"))
    (tmp_path / "model" / "README.md").write_text("mine")
    (tmp_path / "model" / "trainer_state.json").write_text("{}")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"not loaded beside safetensors")
    os.utime(tmp_path / "model" / "model.safetensors", (0, 0))
    assert digest_folder(tmp_path / "model") == before
    assert digest_folder(write_model(tmp_path / "copy")) == before


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "WHOLE_FILE_BYTES", 1 << 20)


@pytest.mark.usefixtures("small_limit")
def test_further_training_of_a_large_file_shows_in_its_digest(tmp_path: Path) -> None:
    size = 3 << 20
    content = os.urandom(size)
    before = digest_folder(write_model(tmp_path / "model", content))
    assert digest_folder(write_model(tmp_path / "model", content)) == before
    # One weight in every sixteen kilobytes moves by its last bit.
    changed = bytearray(content)
    for place in range(0, size, 1 << 14):
        changed[place + place // (1 << 14) % 4096] ^= 1
    assert digest_folder(write_model(tmp_path / "model", bytes(changed))) != before
    assert digest_folder(write_model(tmp_path / "model", content + b"\0")) != before


@pytest.mark.usefixtures("small_limit")
def test_first_and_last_bytes_of_a_large_file_count(tmp_path: Path) -> None:
    content = bytearray(os.urandom(2 << 20))
    digests = {digest_folder(write_model(tmp_path / "model", bytes(content)))}
    for place in (0, -1):
        content[place] ^= 1
        digests.add(digest_folder(write_model(tmp_path / "model", bytes(content))))
    assert len(digests) == 3


@settings(max_examples=20)
@given(st.binary(max_size=64), st.binary(max_size=64))
def test_small_files_have_equal_digests_only_if_they_are_equal(
    tmp_path_factory: pytest.TempPathFactory, first: bytes, second: bytes
) -> None:
    folder = tmp_path_factory.mktemp("models")
    digests = [digest_folder(write_model(folder / str(n), data)) for n, data in enumerate((first, second))]
    assert (digests[0] == digests[1]) is (first == second)


ADAPTER = '{{"peft_type": "LORA", "base_model_name_or_path": "{base}", "r": 2, "lora_alpha": {alpha}}}'
PRUNED = '{{"base": "{base}", "layers": [{alpha}]}}'


@pytest.mark.parametrize(
    ("config", "weights", "content"),
    [(ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER), (DRAFT_CONFIG, DRAFT_WEIGHTS, PRUNED)],
)
def test_the_digest_of_a_part_covers_its_configuration_and_its_base_model(
    tmp_path: Path, config: str, weights: str, content: str
) -> None:
    base, part = write_model(tmp_path / "base"), tmp_path / "part"
    part.mkdir()
    (part / weights).write_bytes(b"weights")
    (part / config).write_text(content.format(base=base, alpha=2))
    chosen = load_settings(flags={"target.model": str(part)})
    found = [digest_weights(chosen).target]
    assert digest_weights(chosen).target == found[0]
    (part / config).write_text(content.format(base=base, alpha=3))
    found.append(digest_weights(chosen).target)
    write_model(base, b"retrained")
    found.append(digest_weights(chosen).target)
    (part / config).write_text(content.format(base="someone/large", alpha=3))
    found.append(digest_weights(chosen).target)
    assert len({*found}) == 4
    assert None not in found


@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_every_engine_that_loads_a_folder_has_its_digest(tmp_path: Path, kind: str) -> None:
    model = str(write_model(tmp_path / "model"))
    flags = {"target.model": model, "target.kind": kind, "draft.model": model, "draft.kind": kind}
    found = digest_weights(load_settings(flags=flags))
    assert found.target == found.draft == digest_folder(tmp_path / "model")


def test_the_embedded_pair_has_two_digests_and_ids_and_scripts_have_none() -> None:
    embedded = digest_weights(Settings())
    assert embedded.target
    assert embedded.draft
    assert embedded.target != embedded.draft
    assert embedded.verifier is None
    ids = {"target.model": "someone/large", "draft.kind": "scripted", "draft.model": "script.json"}
    elsewhere = digest_weights(load_settings(flags=ids))
    assert (elsewhere.target, elsewhere.draft) == (None, None)


def begun(path: Path, chosen: Settings) -> None:
    """Leave a folder with the first answer of a run."""
    with RunFolder(path, Identity.of(chosen, PROBLEMS, 1), PROBLEMS) as folder:
        folder.begin_session("one", ["lookahead"], {})
        folder.append(make_outcome(0))


def test_a_run_is_not_continued_with_other_weights(tmp_path: Path) -> None:
    chosen = load_settings(flags={"target.model": str(write_model(tmp_path / "model"))})
    identity = Identity.of(chosen, PROBLEMS, 1)
    begun(tmp_path / "run", chosen)
    with RunFolder(tmp_path / "run", Identity.of(chosen, PROBLEMS, 1), PROBLEMS) as folder:
        assert len(folder.outcomes) == 1
    write_model(tmp_path / "model", b"retrained")
    retrained = Identity.of(chosen, PROBLEMS, 1)
    message = (
        r"the weights of target\.model = '.*model' were sha256 \w{12}\.\.\. and are now sha256 \w{12}\.\.\."
    )
    with pytest.raises(ResumeError, match=message + r"\. Name another folder with --output, or .*--fresh"):
        RunFolder(tmp_path / "run", retrained, PROBLEMS)
    assert retrained.hash != identity.hash, "without --output the run gets a folder of its own"


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("verifier.embedding_model", "model.safetensors"),
        ("verifier.semantic_model", "model.onnx"),
        ("verifier.semantic_model", "calibration.json"),
        ("verifier.reward_model", "model.safetensors"),
        ("verifier.judge.model", "model.safetensors"),
        ("target.drafter", "model.safetensors"),
        ("target.torch.judge", "judge.safetensors"),
    ],
)
def test_a_run_is_not_continued_with_a_retrained_part(tmp_path: Path, setting: str, name: str) -> None:
    chosen = load_settings(flags={setting: str(write_model(tmp_path / "part"))})
    (tmp_path / "part" / name).write_bytes(b"trained")
    begun(tmp_path / "run", chosen)
    (tmp_path / "part" / name).write_bytes(b"retrained")
    with pytest.raises(ResumeError, match=rf"the weights of {re.escape(setting)} = '.*part' were sha256"):
        RunFolder(tmp_path / "run", Identity.of(chosen, PROBLEMS, 1), PROBLEMS)


@pytest.mark.parametrize("setting", ["router.file", "exit.policy"])
def test_a_run_is_not_continued_with_a_retrained_file(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "trained.json"
    file.write_text("{}")
    chosen = load_settings(flags={setting: str(file)})
    begun(tmp_path / "run", chosen)
    file.write_text('{"a": 1}')
    with pytest.raises(ResumeError, match=rf"the weights of {re.escape(setting)} = '.*' were sha256"):
        RunFolder(tmp_path / "run", Identity.of(chosen, PROBLEMS, 1), PROBLEMS)


def test_a_served_reward_model_has_no_digest(tmp_path: Path) -> None:
    flags = {"verifier.reward_model": str(tmp_path), "verifier.reward_url": "http://a/v1"}
    assert digest_weights(load_settings(flags=flags)).reward is None


def test_results_of_unknown_weights_are_not_continued(tmp_path: Path) -> None:
    identity = Identity.of(Settings(), PROBLEMS, 1)
    begun(tmp_path / "run", Settings())
    path = tmp_path / "run" / "settings.yaml"
    content = yaml.safe_load(path.read_text())
    del content["weights"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ResumeError, match=r"weights of draft\.model = 'embedded' were not known"):
        RunFolder(tmp_path / "run", identity, PROBLEMS)
