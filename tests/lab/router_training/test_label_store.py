"""Labels on the disk: what is done stays done, and belongs to its models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reason_spec.errors import DataError, ResumeError
from reason_spec.lab.router_training.advantage import LabelledStep, LabelOptions
from reason_spec.lab.router_training.label_store import About, LabelFolder, read_all_labels, read_labels
from reason_spec.routers.base import PairIdentity

ABOUT = About(PairIdentity("t", "d"), LabelOptions(), {"sampling": {"temperature": 0.0}})
STEP = LabelledStep("a", "3?", "", 0, 9, "3 = 3\n\n", "3 = 3.\n\n", False, (-0.5,), (True,), 3, 0.25, 1.0)


def test_labels_are_read_as_they_were_written(tmp_path: Path) -> None:
    with LabelFolder(tmp_path / "new" / "labels", ABOUT) as folder:
        folder.append("a", [STEP, replace(STEP, step_index=1, value_own=None, value_drafted=None)])
        folder.append("b", [])
    labels = read_labels(tmp_path / "new" / "labels")
    assert labels.about == ABOUT
    assert labels.problems == folder.problems
    assert [step.advantage for step in labels.steps] == [0.75, 0]


def test_a_line_torn_by_a_kill_is_done_again_and_nothing_else(tmp_path: Path) -> None:
    with LabelFolder(tmp_path, ABOUT) as folder:
        folder.append("a", [STEP])
    with (tmp_path / "labels.jsonl").open("a") as file:
        file.write('{"problem": "b", "steps": [{"probl')
    with LabelFolder(tmp_path, ABOUT) as folder:
        assert list(folder.problems) == ["a"]
        folder.append("b", [STEP])
    assert list(read_labels(tmp_path).problems) == ["a", "b"]


def test_other_models_or_options_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    with LabelFolder(tmp_path, ABOUT) as folder:
        folder.append("a", [STEP])
    for other, what in (
        (replace(ABOUT, pair=PairIdentity("t", "x")), "other pair"),
        (replace(ABOUT, options=LabelOptions(rollouts=9)), "other options"),
        (replace(ABOUT, settings={}), "other settings"),
    ):
        with pytest.raises(ResumeError, match=f"{what}.*--fresh"):
            LabelFolder(tmp_path, other)
    assert list(read_labels(tmp_path).problems) == ["a"]
    with LabelFolder(tmp_path, replace(ABOUT, settings={}), fresh=True) as folder:
        assert folder.problems == {}
    assert list(read_labels(tmp_path).problems) == ["a"]
    with LabelFolder(tmp_path, replace(ABOUT, settings={}), fresh=True) as folder:
        folder.append("b", [STEP])
    assert list(read_labels(tmp_path).problems) == ["b"]
    assert read_labels(tmp_path).about.settings == {}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with LabelFolder(tmp_path, ABOUT), pytest.raises(ResumeError, match="in use"):
        LabelFolder(tmp_path, ABOUT)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with LabelFolder(tmp_path, ABOUT) as folder:
        folder.append("a", [STEP])
    line = json.loads((tmp_path / "labels.jsonl").read_text())
    line["steps"][0]["logprobs"] = "none"
    (tmp_path / "labels.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"labels\.jsonl, line 1: .*logprobs"):
        read_labels(tmp_path)
    with pytest.raises(DataError, match="router collect"):
        read_labels(tmp_path / "nothing")


def test_labels_of_two_pairs_are_not_mixed(tmp_path: Path) -> None:
    for name, draft in (("one", "d"), ("two", "d"), ("three", "x")):
        with LabelFolder(tmp_path / name, replace(ABOUT, pair=PairIdentity("t", draft))) as folder:
            folder.append(name, [STEP])
    both = read_all_labels([tmp_path / "one", tmp_path / "two"])
    assert list(both.problems) == ["one", "two"]
    with pytest.raises(DataError, match="other models"):
        read_all_labels([tmp_path / "one", tmp_path / "three"])


def test_labels_of_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    for name in ("rollouts", "reward"):
        with LabelFolder(tmp_path / name, replace(ABOUT, options=LabelOptions(name))) as folder:
            folder.append(name, [STEP])
    with pytest.raises(
        DataError, match=r"reward was labelled with label 'reward', and .*rollouts with 'rollouts'"
    ):
        read_all_labels([tmp_path / "rollouts", tmp_path / "reward"])
