"""Machine code is kept outside the package, and only where that can be written."""

from __future__ import annotations

import sys
from pathlib import Path

import numba
import pytest

from reason_spec.suffix import native


def double(value: int) -> int:
    return 2 * value


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the folder is set by XDG_CACHE_HOME")


def test_machine_code_is_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.compiled(double)(21) == 42
    assert list((tmp_path / "reason-spec").rglob("*.nbi"))
    assert numba.config.CACHE_DIR == ""


def test_without_a_folder_to_write_code_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    (tmp_path / "taken").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert native.compiled(double)(21) == 42
    assert not list(Path(__file__).parent.rglob("*.nbi"))


def test_a_folder_that_the_user_chose_is_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "chosen"))
    assert native.compiled(double)(21) == 42
    assert list((tmp_path / "chosen").rglob("*.nbi"))


def test_a_change_of_any_kernel_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one_kernels.py", "other_kernels.py"):
        (tmp_path / name).write_text("first")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    before = native.code_folder()
    assert native.code_folder() == before
    (tmp_path / "one_kernels.py").write_text("second")
    assert native.code_folder() != before
