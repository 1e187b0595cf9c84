"""Each check must tell a sound installation from one with the fault it looks for."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from rich.console import Console

from reason_spec.cli import checks, doctor, requirements
from reason_spec.cli.checks import Check, Cores
from reason_spec.engines.machine import available_memory_bytes
from reason_spec.errors import DataError


@pytest.fixture(scope="module")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of real but tiny models, laid out as the embedded one is."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    weights = tmp_path_factory.mktemp("weights")
    config = Qwen3Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "one": 1}, unk_token="<unk>"))
    for role in ("target", "draft"):
        Qwen3ForCausalLM(config).save_pretrained(weights / role)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(weights / role)
    return weights


# Python and packages -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 14), "fail"), ((3, 11, 0), "ok"), ((3, 13, 1), "ok"), ((4, 0, 0), "ok")]
)
def test_python_older_than_supported_fails(version: tuple[int, ...], status: str) -> None:
    assert checks.check_python(version).status == status


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
    found = requirements.requirement_problem(Requirement(requirement))
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert problem in found


def test_declared_requirements_keep_extras_apart() -> None:
    declared = requirements.declared_requirements()
    assert declared is not None
    base = {requirement.name for requirement in declared.base}
    assert {"torch", "transformers", "sentence-transformers"} <= base
    assert "pytest" not in base
    assert "pytest" in {requirement.name for requirement in declared.extras["dev"]}


def test_a_package_out_of_range_fails_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = requirements.Requirements([Requirement("pytest>=9999")], {})
    monkeypatch.setattr(checks, "declared_requirements", lambda: wrong)
    check = checks.check_packages()
    assert check.status == "fail"
    assert "pytest" in check.found
    assert "pip install" in check.remedy


def test_extras_report_absent_partly_present_and_present(monkeypatch: pytest.MonkeyPatch) -> None:
    present, absent = Requirement("pytest"), Requirement("no-such-package-anywhere")
    extras = {"all": [present], "half": [present, absent], "none": [absent]}
    monkeypatch.setattr(checks, "declared_requirements", lambda: requirements.Requirements([], extras))
    whole, half, none = checks.check_extras()
    assert (whole.status, half.status, none.status) == ("ok", "warn", "ok")
    assert "[half]" in half.remedy
    assert "[none]" in none.found


def test_without_metadata_the_packages_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "DISTRIBUTION", "no-such-package-anywhere")
    assert checks.check_packages().status == "warn"
    assert checks.check_extras() == []
    assert requirements.install_line("dev") == "pip install 'no-such-package-anywhere[dev]'"


# Libraries -----------------------------------------------------------------------------------


def test_torch_and_transformers_of_this_environment_pass() -> None:
    assert checks.check_torch().status == "ok"
    assert checks.check_transformers().status == "ok"


def test_a_torchvision_that_does_not_load_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    information = tmp_path / "torchvision-9.9.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    check = checks.check_torchvision()
    assert check.status == "fail"
    assert "operator nms does not exist" in check.found
    assert "pip uninstall" in check.remedy


def test_math_verify_passes_off_the_main_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(checks.check_math_verify).result().status == "ok"


def test_the_embedding_model_loads_and_encodes() -> None:
    check = checks.check_embedding_model()
    assert check.status == "ok", check
    assert "384 dimensions" in check.found


def test_other_embedding_weights_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.verifiers.encoder.MINILM_SHA256", "0" * 64)
    check = checks.check_embedding_model()
    assert check.status == "fail"
    assert "sha256" in check.found
    assert "reinstall" in check.found


# Cores, threads, memory ----------------------------------------------------------------------


@given(quota=st.integers(1, 10**7), period=st.integers(1, 10**6), version=st.sampled_from([1, 2]))
def test_a_cpu_quota_is_read_in_cores(
    tmp_path_factory: pytest.TempPathFactory, quota: int, period: int, version: int
) -> None:
    cgroup = tmp_path_factory.mktemp("cgroup")
    write_quota(cgroup, version, str(quota), str(period))
    assert checks.cpu_quota(cgroup) == pytest.approx(quota / period)


@pytest.mark.parametrize(("version", "quota"), [(2, "max"), (1, "-1"), (2, ""), (1, "")])
def test_no_cpu_quota_is_none(tmp_path: Path, version: int, quota: str) -> None:
    write_quota(tmp_path, version, quota, "100000")
    assert checks.cpu_quota(tmp_path) is None
    assert checks.cpu_quota(tmp_path / "absent") is None


def write_quota(cgroup: Path, version: int, quota: str, period: str) -> None:
    if version == 2:
        (cgroup / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (cgroup / "cpu").mkdir()
        (cgroup / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (cgroup / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")


@given(st.integers(1, 256), st.integers(1, 256), st.none() | st.floats(0.1, 256))
def test_usable_cores_respect_affinity_and_quota(machine: int, affinity: int, quota: float | None) -> None:
    usable = Cores(machine, affinity, quota).usable
    assert 1 <= usable <= affinity
    assert quota is None or usable <= max(1, quota)


def test_this_process_has_a_usable_core() -> None:
    cores = checks.available_cores()
    assert 1 <= cores.usable <= cores.affinity <= cores.machine


def test_one_core_is_a_warning() -> None:
    assert checks.check_cores(Cores(8, 8, 1.5)).status == "warn"
    assert checks.check_cores(Cores(8, 2, None)).status == "ok"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"OMP_NUM_THREADS": "3"}, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, "OMP_NUM_THREADS"),
        ({"MKL_NUM_THREADS": "64"}, "MKL_NUM_THREADS"),
        ({"OMP_PROC_BIND": "close"}, "OMP_PROC_BIND"),
        ({"GOMP_CPU_AFFINITY": "0-1"}, "GOMP_CPU_AFFINITY"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY"),
    ],
)
def test_thread_settings_that_fight_are_named(environment: dict[str, str], named: str) -> None:
    check = checks.check_threads(2, environment)
    assert check.status == "warn"
    assert check.remedy == f"Run: unset {named}"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMP_NUM_THREADS": "2"},
        {"OMP_NUM_THREADS": "many"},
        {"OMP_PROC_BIND": "false"},
        {"KMP_AFFINITY": ""},
    ],
)
def test_harmless_thread_settings_pass(environment: dict[str, str]) -> None:
    assert checks.check_threads(2, environment).status == "ok"


@pytest.mark.parametrize(("gib", "status"), [(0.5, "fail"), (2.0, "warn"), (16.0, "ok")])
def test_memory_that_does_not_hold_two_workers_fails(gib: float, status: str) -> None:
    assert checks.check_memory(int(gib * checks.GIB)).status == status


def test_a_memory_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.current").write_text("48576\n")
    assert available_memory_bytes(tmp_path) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path) > 1_000_000


# The pair and the output folder --------------------------------------------------------------


def test_a_complete_pair_passes(tiny_weights: Path) -> None:
    check = checks.check_pair(tiny_weights.joinpath)
    assert check.status == "ok"
    assert "target" in check.found


def test_an_absent_pair_fails() -> None:
    def locate(role: str) -> Path:
        raise DataError(f"The embedded {role} has no weights.")

    check = checks.check_pair(locate)
    assert check.status == "fail"
    assert "no weights" in check.found
    assert "--target" in check.remedy


@pytest.mark.parametrize("damage", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_pair_is_reported_as_failed(tiny_weights: Path, tmp_path: Path, damage: str) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(tiny_weights, weights)
    (weights / "draft" / damage).write_bytes(b"{ torn")
    check = checks.guarded("demonstration pair", lambda: checks.check_pair(weights.joinpath))
    assert check.status == "fail"
    assert check.remedy


def test_an_output_folder_is_probed_without_being_made(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    assert checks.check_output(folder).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    assert checks.check_output(tmp_path / "runs" / "first").status == "fail"
    assert checks.check_output(tmp_path / "runs").status == "fail"


# The whole -----------------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_failed_check_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Check:
        raise ImportError("undefined symbol: first line\nsecond line")

    monkeypatch.setattr(doctor, "check_math_verify", broken)
    checks = {check.name: check for check in doctor.run_checks()}
    assert checks["math-verify"].status == "fail"
    assert checks["math-verify"].found == "ImportError: undefined symbol: first line"
    assert checks["torch"].status == "ok"
    assert doctor.exit_code(checks.values()) == 1


@pytest.mark.parametrize(
    ("statuses", "code"), [([], 0), (["ok", "warn"], 0), (["ok", "fail"], 1), (["fail", "warn"], 1)]
)
def test_only_a_failure_makes_the_exit_code_one(statuses: list[checks.Status], code: int) -> None:
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
