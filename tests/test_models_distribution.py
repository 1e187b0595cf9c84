"""The distribution of trained models: what it packs, how its models are named, and that they load."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from reason_spec.cli.options import complete_model
from reason_spec.engines.factory import create_engine
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.model_package import PREFIX, find_packaged
from reason_spec.engines.weights import digest_weights
from reason_spec.errors import DataError, EngineError, SettingsError
from reason_spec.settings import EngineSettings, Settings
from reason_spec_models import model_folders
from tests.engines.real_models import SMOLLM2, real_model
from tests.test_house import ROOT, project_files, run_python
from tests.test_packages import build

SOURCE = ROOT / "reason-spec-models"
PACKAGE = SOURCE / "reason_spec_models"
PACKED = (".py", ".typed", ".json", ".jinja", ".safetensors")
MOST_BYTES = 40_000_000
ADAPTER = "models:smollm2-gsm8k"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy of the project's files, in which training and adapting have left theirs."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("models")
    for path in project_files():
        if path.is_relative_to(SOURCE):
            copy = folder / "tree" / path.relative_to(SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    trained = folder / "tree" / "reason_spec_models" / "weights" / "smollm2-gsm8k"
    (trained / "checkpoint.pt").write_bytes(b"optimizer")
    (trained / "answers").mkdir()
    (trained / "answers" / "settings.yaml").write_text("")
    (trained / "versions" / "1").mkdir(parents=True)
    (trained / "versions" / "1" / "layers.safetensors").write_bytes(b"of users")
    build(folder / "tree", folder, "wheel")
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_with_its_weights_and_no_traces_of_training(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    expected = {
        path.relative_to(SOURCE).as_posix(): path.read_bytes()
        for path in project_files()
        if path.is_relative_to(PACKAGE) and path.suffix in PACKED
    }
    assert packed.keys() == expected.keys()
    assert [name for name, content in expected.items() if packed[name] != content] == []
    assert wheel.stat().st_size <= sum(map(len, packed.values())) <= MOST_BYTES


def test_the_installed_wheel_lists_the_folders_that_it_holds(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from reason_spec_models import model_folders as f\n"
    result = run_python(code + "for item in f().items(): print(*item)", str(tmp_path), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert found.keys() == model_folders().keys() >= {"smollm2-gsm8k"}
    assert all(Path(folder).is_relative_to(tmp_path) for folder in found.values())


def test_each_model_has_its_card() -> None:
    headings = [line for line in (SOURCE / "README.md").read_text().splitlines() if line.startswith("## ")]
    assert {line.split()[1] for line in headings} == model_folders().keys()


def test_a_name_stands_for_its_folder_and_is_completed() -> None:
    for name, folder in model_folders().items():
        assert find_packaged(PREFIX + name) == folder
    assert complete_model("models:") == [PREFIX + name for name in model_folders()]
    assert find_packaged("./models") is None


def test_the_digest_of_a_named_model_is_that_of_its_folder() -> None:
    real_model(SMOLLM2)
    digests = [
        digest_weights(Settings(target=EngineSettings(model=model))).target
        for model in (ADAPTER, str(model_folders()["smollm2-gsm8k"]))
    ]
    assert digests[0] == digests[1] is not None


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=rf"unknown packaged model 'models:smollm-gsm8k'; .*Known: .*{ADAPTER}"
    ):
        create_engine("target", EngineSettings(model="models:smollm-gsm8k"))


def test_without_the_distribution_its_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reason_spec_models", None)
    with pytest.raises(EngineError, match=r"not installed.*pip install 'reason-spec\[real\]'"):
        resolve_model("target", ADAPTER)
    with pytest.raises(DataError, match=r"pip install 'reason-spec\[real\]'"):
        digest_weights(Settings(target=EngineSettings(model=ADAPTER)))
    assert "embedded" in complete_model("")


def test_the_adapter_fits_its_base_model_and_changes_its_upper_layers() -> None:
    base = Path(real_model(SMOLLM2))
    merged = Path(resolve_model("target", ADAPTER))
    with safe_open(base / WEIGHTS, "pt") as before, safe_open(merged / WEIGHTS, "pt") as after:
        assert set(before.keys()) == set(after.keys())
        for layer, adapted in ((0, False), (29, True)):
            name = f"model.layers.{layer}.self_attn.q_proj.weight"
            assert torch.equal(before.get_tensor(name), after.get_tensor(name)) != adapted
