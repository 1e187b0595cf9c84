"""Each check must tell a sound installation from one with the fault it looks for."""

from __future__ import annotations

import importlib.metadata
import io
import json
import py_compile
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

from reason_spec.cli import doctor
from reason_spec.cli.doctor import Check
from reason_spec.engines.machine import available_memory_bytes
from reason_spec.engines.model_files import resolve_model
from reason_spec.settings import EngineSettings, Settings
from tests.cli_runner import invoke, succeed
from tests.engines.test_pruned import save_draft
from tests.engines.tiny_models import save_model

ON_CPU = ("--set", "target.device=cpu", "--set", "draft.device=cpu")


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("pytest>=1", None),
        ("pytest>=9999", "is outside >=9999"),
        ("pytest<1", "is outside <1"),
        ("no-such-package-anywhere>=1", "no-such-package-anywhere is missing"),
    ],
)
def test_a_package_outside_its_range_is_named(requirement: str, problem: str | None) -> None:
    found = doctor.requirement_problem(Requirement(requirement))
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert problem in found


def test_packages_that_are_compiled_at_each_start_are_a_warning_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    check = doctor.check_bytecode("large")
    assert check.status == "warn"
    assert "compileall" in check.remedy
    py_compile.compile(str(tmp_path / "large.py"))
    assert doctor.check_bytecode("large").status == "ok"


def declare(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: list(lines))


def test_a_package_out_of_range_fails_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_packages().status == "ok"
    declare(monkeypatch, "pytest>=9999", 'no-such-package-anywhere; extra == "dev"')
    check = doctor.check_packages()
    assert check.status == "fail"
    assert check.found.startswith("pytest")
    assert "no-such" not in check.found
    assert "pip install" in check.remedy


def test_an_extra_is_installed_if_all_its_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metadata:
        def get_all(self, _: str) -> list[str]:
            return ["all", "half", "none"]

    declare(
        monkeypatch,
        "numpy",
        'pytest; extra == "all"',
        'pytest; extra == "half"',
        'no-such-package-anywhere; extra == "half"',
        'no-such-package-anywhere; extra == "none"',
    )
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: Metadata())
    assert "installed: all; not installed: half, none (" in doctor.check_extras().found


def test_without_metadata_the_packages_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISTRIBUTION", "no-such-package-anywhere")
    assert doctor.check_packages().status == "warn"


def test_other_embedding_weights_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.verifiers.encoder.MINILM_SHA256", "0" * 64)
    check = doctor.check_embedding_model()
    assert check.status == "fail"
    assert "sha256" in check.found


@pytest.mark.parametrize(("quota", "status"), [("150000 100000", "warn"), ("max 100000", "ok"), ("", "ok")])
def test_a_quota_of_less_than_two_cores_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, status: str
) -> None:
    monkeypatch.setattr("reason_spec.accelerator.cores.available_cores", lambda: (0, 1, 2, 3))
    (tmp_path / "cpu.max").write_text(quota)
    assert doctor.check_cores(tmp_path).status == status
    monkeypatch.setattr("reason_spec.accelerator.cores.available_cores", lambda: (0,))
    assert doctor.check_cores(tmp_path).status == "warn"


def test_a_memory_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.current").write_text("48576\n")
    assert available_memory_bytes(tmp_path) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path) > 1_000_000


# Models --------------------------------------------------------------------------------------


def checked(*arguments: str) -> dict[str, dict[str, str]]:
    report = json.loads(invoke("doctor", "--json", *arguments, "--set", "draft.device=cpu").stdout)
    return {check["name"]: check for check in report["checks"]}


def test_a_sound_installation_passes_and_both_models_are_placed() -> None:
    printed = succeed("doctor", *ON_CPU).stdout
    for word in ("torch", "transformers", "embedding model", "target", "draft", "float32", "memory of cpu"):
        assert word in printed


def test_only_models_that_the_strategy_needs_are_placed() -> None:
    assert checked().keys() >= {"target", "draft"}
    assert "draft" not in checked("--strategy", "autoregressive")
    assert "judge" in checked("--strategy", "specreason", "--verifier", "utility")


def test_models_of_one_device_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: Counter[str] = Counter()
    for name in ("target", "draft"):
        doctor.check_model(name, EngineSettings(device="cpu"), needed)
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda: needed["cpu"] - 1)
    settings = Settings(target=EngineSettings(device="cpu"), draft=EngineSettings(device="cpu"))
    *_, memory = doctor.check_models(settings)
    assert memory.status == "fail"


def test_the_folder_of_a_composed_draft_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draft = str(save_draft(save_model("llama", tmp_path / "base"), tmp_path / "draft"))
    found = doctor.check_model("draft", EngineSettings(model=draft, device="cpu"), Counter()).found
    assert found.startswith(f"{draft} (files in {resolve_model('draft', draft)}) in torch on cpu")


def test_a_served_model_needs_nothing_here() -> None:
    assert "http://gpu-1:8000/v1" in checked("--target-url", "http://gpu-1:8000/v1")["target"]["found"]


def test_a_model_that_is_not_there_fails() -> None:
    check = checked("--target", "./nowhere")["target"]
    assert check["status"] == "fail"
    assert "nowhere" in check["found"]


# The whole -----------------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_failed_check_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Check:
        raise ImportError("undefined symbol: first line\nsecond line")

    monkeypatch.setattr(doctor, "check_embedding_model", broken)
    checks = {check.name: check for check in doctor.run_checks(Settings())}
    assert checks["embedding model"].status == "fail"
    assert checks["embedding model"].found == "ImportError: undefined symbol: first line"
    assert checks["torch"].status == "ok"
    assert doctor.exit_code(checks.values()) == 1


@pytest.mark.parametrize(
    ("statuses", "code"), [([], 0), (["ok", "warn"], 0), (["ok", "fail"], 1), (["fail", "warn"], 1)]
)
def test_only_a_failure_makes_the_exit_code_one(statuses: list[doctor.Status], code: int) -> None:
    assert doctor.exit_code([Check("some", status, "") for status in statuses]) == code


def test_the_table_shows_every_check_and_keeps_brackets() -> None:
    checks = [Check("one", "ok", "fine"), Check("two", "warn", "a [dev] part", "pip install 'x[dev]'")]
    console = Console(file=io.StringIO(), width=100)
    console.print(doctor.render(checks))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for expected in ("one", "fine", "two", "a [dev] part", "pip install 'x[dev]'"):
        assert expected in text


def test_json_carries_every_field() -> None:
    report = json.loads(doctor.to_json([Check("one", "fail", "gone — é", "do it")]))
    assert report["ok"] is False
    assert report["version"] == importlib.metadata.version("reason-spec")
    assert report["checks"] == [{"name": "one", "status": "fail", "found": "gone — é", "remedy": "do it"}]
