"""Data sets by name: the package itself reads folders of files, so that no test needs the hub."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from reason_spec.errors import DataError, MissingDependencyError
from reason_spec.evaluation import dataset_source
from reason_spec.evaluation.dataset_source import DatasetSource
from reason_spec.evaluation.sources import read_task_sources

needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the package datasets is not installed"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("datasets") is not None:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def make_folder(folder: Path, *splits: str) -> str:
    folder.mkdir()
    for split in splits:
        rows = [
            {"problem": f"{split} {n}?", "answer": str(n), "level": f"Level {n}", "unique_id": f"{split}/{n}"}
            for n in range(3)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("text", "name", "config", "split", "task"),
    [
        ("hf:openai/gsm8k", "openai/gsm8k", "main", None, "gsm8k"),
        ("hf:openai/gsm8k:socratic@train", "openai/gsm8k", "socratic", "train", "gsm8k"),
        ("hf:HuggingFaceH4/MATH-500@test[:10]", "HuggingFaceH4/MATH-500", None, "test[:10]", "math500"),
        ("hf:someone/else", "someone/else", None, None, None),
    ],
)
def test_a_name_says_configuration_split_and_task(
    text: str, name: str, config: str | None, split: str | None, task: str | None
) -> None:
    source = DatasetSource.parse(text)
    assert (source.name, source.config, source.split, source.task) == (name, config, split, task)


@needs_datasets
def test_the_test_split_is_read_with_ids_and_levels(tmp_path: Path) -> None:
    spec = make_folder(tmp_path / "data", "train", "test")
    sources = read_task_sources([f"math500={spec}"], "auto", limit=2)
    assert [(item.id, item.question, item.answer, item.task, item.level) for item in sources.problems] == [
        ("test/0", "test 0?", "0", "math500", "Level 0"),
        ("test/1", "test 1?", "1", "math500", "Level 1"),
    ]
    assert len(read_task_sources([f"{spec}@train[:1]"], "auto").problems) == 1


@needs_datasets
def test_parquet_is_read_too(tmp_path: Path) -> None:
    import datasets

    (tmp_path / "data").mkdir()
    rows = {"question": ["1+1?", "1+1?"], "answer": ["2", "2"], "difficulty": [4, 4]}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "data" / "test.parquet")
    sources = read_task_sources([f"hf:{tmp_path / 'data'}"], "auto")
    assert [(item.id, item.level) for item in sources.problems] == [("1", "4")]
    assert "1 repeated" in sources.notices[0]


@needs_datasets
@pytest.mark.parametrize(
    ("splits", "ending", "message"),
    [
        (("train", "validation"), "", None),
        (("train", "dev"), "@nonsense", r"cannot be loaded \(ValueError: .*nonsense"),
        ((), "", r"cannot be loaded .*Check the files in the folder"),
    ],
)
def test_what_is_missing_in_a_folder_is_said(
    tmp_path: Path, splits: tuple[str, ...], ending: str, message: str | None
) -> None:
    spec = make_folder(tmp_path / "data", *splits) + ending
    if message is None:
        assert read_task_sources([spec], "auto").problems[0].question == "validation 0?"
        return
    with pytest.raises(DataError, match=message):
        read_task_sources([spec], "auto")


@needs_datasets
def test_one_split_of_several_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = DatasetSource.parse("hf:a/b")
    assert source._choose_split(["train"]) == "train"
    with pytest.raises(DataError, match=r"name one of its splits \(train, extra\), as hf:a/b@train"):
        source._choose_split(["train", "extra"])


@needs_datasets
def test_without_a_network_the_remedy_is_said() -> None:
    with pytest.raises(
        DataError, match=r"hf:openai/gsm8k: cannot be loaded .*without one, download the file"
    ):
        read_task_sources(["hf:openai/gsm8k"], "auto")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_source, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'reason-spec\[hf\]'"):
        read_task_sources(["hf:openai/gsm8k"], "auto")
