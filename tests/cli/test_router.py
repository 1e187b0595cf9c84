"""`reason-spec router`: labels that go on where they were, a trained file, and its measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reason_spec.lab.router_training.advantage import LabelOptions
from reason_spec.lab.router_training.label_store import About, LabelFolder, read_all_labels, read_labels
from reason_spec.routers.base import PairIdentity
from reason_spec.settings import load_settings
from tests.cli_runner import enter_world, fail, succeed
from tests.evaluation.problems import World
from tests.lab.router_training.test_router_training import made_up


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return enter_world(tmp_path, monkeypatch)


def collect(world: World, *more: str) -> list[str]:
    return [
        "router",
        "collect",
        str(world.problems),
        "--config",
        str(world.config),
        "--output",
        "labels",
        *more,
    ]


def store_labels(path: Path, seed: int, draft: str = "d") -> None:
    with LabelFolder(path, About(PairIdentity("t", draft), LabelOptions(), {})) as folder:
        for problem, steps in made_up(120, seed).problems.items():
            folder.append(problem, steps)


def test_collect_labels_each_problem_once_and_goes_on_where_it_was(world: World) -> None:
    said = succeed(*collect(world, "--limit", "4", "--rollouts", "2")).stdout
    assert said.startswith("4 problems, ")
    before = Path("labels/labels.jsonl").read_text()
    again = succeed(*collect(world, "--rollouts", "2"))
    assert "4 problems are labelled in labels already" in again.stderr
    after = Path("labels/labels.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 6
    counts = json.loads(succeed(*collect(world, "--rollouts", "2", "--json")).stdout)
    assert counts["problems"] == 6
    assert counts["better_by_target"] >= 1
    assert "other options" in fail(*collect(world, "--rollouts", "3"))


def test_problems_of_two_files_without_ids_are_not_confused(world: World, tmp_path: Path) -> None:
    for name, chosen in (("a", world.sums[:2]), ("b", world.sums[2:4])):
        lines = [{"question": item.question, "answer": item.reference} for item in chosen]
        (tmp_path / name).with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--config", str(world.config), "--rollouts", "1"]
    for file, output in (("a", "labels_a"), ("b", "labels_b"), ("b", "labels_a")):
        succeed("router", "collect", f"{file}.jsonl", *options, "--output", output)
    assert len(read_labels(tmp_path / "labels_a").problems) == 4
    both = read_all_labels([tmp_path / "labels_a", tmp_path / "labels_b"])
    assert len(both.problems) == len({step.problem for step in both.steps}) == 4
    assert {step.question for step in both.steps} == {item.question for item in world.sums[:4]}


def test_what_cannot_be_labelled_is_refused_before_anything_is_loaded(world: World) -> None:
    questions = Path("questions.jsonl")
    questions.write_text('{"id": "a", "question": "How many?"}\n')
    arguments = ["router", "collect", str(questions), "--config", str(world.config), "--output", "labels"]
    assert "1 of 1 problems have no answer" in fail(*arguments)
    assert "reward model" in fail(*arguments, "--label", "reward")
    assert "unknown label 'luck'" in fail(*collect(world, "--label", "luck"))
    assert "--generate makes all problems" in fail(*collect(world, "--generate", "3"))


def test_train_writes_a_router_that_eval_measures(world: World, tmp_path: Path) -> None:
    store_labels(tmp_path / "train", 1)
    store_labels(tmp_path / "fresh", 2)
    said = succeed("router", "train", "train", "--output", "new/router.json").stdout
    assert "of 120 problems; held-out area under the curve: logistic" in said
    record = json.loads(succeed("router", "eval", "fresh", "--file", "new/router.json", "--json").stdout)
    assert record["num_problems"] == 120
    assert {curve["name"] for curve in record["curves"]} == {
        "learned",
        "oracle",
        "threshold",
        "rsd",
        "random",
    }
    shown = succeed("router", "eval", "fresh", "--file", "new/router.json").stdout
    assert "learned" in shown
    assert "oracle" in shown
    assert succeed("router", "eval", "fresh", "--router", "threshold").stdout.count("threshold") >= 1


def test_a_router_of_other_models_is_refused(world: World, tmp_path: Path) -> None:
    store_labels(tmp_path / "train", 1)
    store_labels(tmp_path / "others", 2, "another")
    succeed("router", "train", "train", "--output", "router.json", "--model", "logistic")
    assert "trained on another draft" in fail("router", "eval", "others", "--file", "router.json")
    assert "other models than train" in fail("router", "train", "train", "others", "--output", "both.json")
    forced = ["router", "eval", "others", "--file", "router.json", "--set", "router.any_pair=true", "--json"]
    assert json.loads(succeed(*forced).stdout)["num_steps"] > 100
    solving = ["solve", "How many?", "--config", str(world.config), "--strategy", "arbitrage"]
    assert "trained on another target" in fail(
        *solving, "--router", "learned", "--set", "router.file=router.json"
    )


def test_bad_names_and_missing_folders_are_named(world: World, tmp_path: Path) -> None:
    store_labels(tmp_path / "train", 1)
    assert "unknown model 'forest'" in fail(
        "router", "train", "train", "--output", "r.json", "--model", "forest"
    )
    assert "nowhere" in fail("router", "train", "nowhere", "--output", "r.json")
    assert "missing.json" in fail("router", "eval", "train", "--file", "missing.json")
    (tmp_path / "file").write_text("")
    unwritable = ["--model", "logistic", "--output", "file/router.json"]
    assert "cannot be written" in fail("router", "train", "train", *unwritable)


def test_the_shipped_router_is_that_of_the_embedded_pair() -> None:
    from reason_spec.engines.weights import identify_model
    from reason_spec.routers.learned import load_model, shipped_model

    settings = load_settings()
    pair = PairIdentity(identify_model("target", settings.target), identify_model("draft", settings.draft))
    assert load_model(shipped_model()).pair == pair
