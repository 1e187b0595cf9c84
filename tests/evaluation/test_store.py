from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.errors import DataError, ResumeError
from reason_spec.evaluation.outcome import AnswerUsage, Outcome, UnitKey
from reason_spec.evaluation.records import drop_torn_line
from reason_spec.evaluation.store import Identity, RunFolder, read_outcomes
from reason_spec.settings import Settings, load_settings
from reason_spec.types import Plan, Problem, Usage

PROBLEMS = tuple(Problem(f"p{number}", f"Question {number}?", str(number)) for number in range(8))


def make_outcome(
    number: int = 0, *, strategy: str = "lookahead", sample: int = 0, **changes: object
) -> Outcome:
    problem = PROBLEMS[number]
    outcome = Outcome(
        id=problem.id, index=number, question=problem.question, answer=problem.answer,
        response="So.\u2028Then", prediction=None, correct=True, strategy=strategy, sample=sample, seed=0,
        seconds=1.0, first_step_seconds=0.5, tokens=0,
        steps=(), finish="eos",
        usage=AnswerUsage(Usage(), Usage(), {"accept": 0, "reject": 0, "unknown": 0}, 0.0),
        plan=Plan(number % 2, 8, 100.0) if number else None,
        loss_class="exact", concurrency=1, order=0, session="s", settings_hash="h",
    )  # fmt: skip
    return replace(outcome, **changes)  # type: ignore[arg-type]


def open_folder(
    path: Path,
    settings: Settings | None = None,
    problems: tuple[Problem, ...] = PROBLEMS,
    concurrency: int = 1,
    fresh: bool = False,
) -> RunFolder:
    identity = Identity.of(settings or Settings(), problems, concurrency)
    return RunFolder(path, identity, problems, fresh=fresh)


def begun(path: Path, count: int = 2, **options: object) -> None:
    """Leave a folder with the first answers of a run."""
    with open_folder(path, **options) as folder:  # type: ignore[arg-type]
        folder.begin_session("one", ["lookahead"], {"order_seed": 0})
        for number in range(count):
            folder.append(make_outcome(number))


def test_what_was_stored_is_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    begun(tmp_path / "a" / "run")
    with open_folder(tmp_path / "a" / "run") as folder:
        assert folder.outcomes == {make_outcome(n).key: make_outcome(n) for n in range(2)}


def test_more_problems_samples_and_strategies_may_follow(tmp_path: Path) -> None:
    begun(tmp_path / "run", problems=PROBLEMS[:4])
    other = load_settings(flags={"strategy.name": "prompt_lookup"})
    with open_folder(tmp_path / "run", settings=other, problems=PROBLEMS) as folder:
        folder.append(make_outcome(7))
        folder.append(make_outcome(0, sample=1))
        folder.append(make_outcome(0, strategy="prompt_lookup"))
    with open_folder(tmp_path / "run", problems=PROBLEMS[:2]) as folder:
        assert len(folder.outcomes) == 5


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    other = load_settings(flags={"strategy.depth": 7, "sampling.temperature": 0.5})
    with pytest.raises(
        ResumeError, match=r"strategy\.depth was 4 and is now 7; sampling\.temperature was 0\.0"
    ):
        open_folder(tmp_path / "run", settings=other)
    with pytest.raises(ResumeError, match="concurrency was 1 and is now 4"):
        open_folder(tmp_path / "run", concurrency=4)
    with pytest.raises(ResumeError, match="prompt was 'plain' and is now 'boxed'"):
        open_folder(tmp_path / "run", settings=load_settings(flags={"target.model": "elsewhere"}))


def test_a_run_goes_on_after_its_servers_moved_and_with_other_patience(tmp_path: Path) -> None:
    def served(host: str, hang_timeout: int) -> Settings:
        judge = {"kind": "remote", "remote": {"base_urls": f"http://{host}/v1"}, "hang_timeout": hang_timeout}
        urls = {"verifier.judge": judge, "verifier.reward_url": f"http://{host}:1/v1"}
        return load_settings(flags={**urls, "target.hang_timeout": hang_timeout, "server.port": hang_timeout})

    begun(tmp_path / "run", settings=served("a", 30))
    with open_folder(tmp_path / "run", settings=served("b", 60)) as folder:
        assert len(folder.outcomes) == 2
    with pytest.raises(ResumeError, match=r"verifier\.reward_url was True and is now False"):
        open_folder(tmp_path / "run")


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        (
            (*PROBLEMS[:1], Problem("p1", "Question 1?", "another"), *PROBLEMS[2:]),
            "'p1' has another question, answer or task",
        ),
        ((Problem("p0", "Question 0?", "0", "another"),), "'p0' has another"),
        (PROBLEMS[2:], "'p0' is not among those given"),
        (PROBLEMS[1:], "'p0' is not among those given"),
        ((Problem("p0", "Another?", "0"),), "'p0' has another"),
        ((Problem("x", "Another?", "0"),), "'p0' is not among"),
        ((*PROBLEMS[:6], PROBLEMS[7], PROBLEMS[6]), "order or number"),
    ],
)
def test_other_problems_are_refused(tmp_path: Path, problems: tuple[Problem, ...], message: str) -> None:
    begun(tmp_path / "run")
    with pytest.raises(ResumeError, match=message):
        open_folder(tmp_path / "run", problems=problems)


def test_a_refused_folder_is_left_as_it_was_and_fresh_starts_anew(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    before = (tmp_path / "run" / "results.jsonl").read_bytes()
    other = load_settings(flags={"strategy.depth": 7})
    with pytest.raises(ResumeError, match="--fresh"):
        open_folder(tmp_path / "run", settings=other)
    assert (tmp_path / "run" / "results.jsonl").read_bytes() == before
    with open_folder(tmp_path / "run", settings=other, fresh=True) as folder:
        assert folder.outcomes == {}
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@settings(max_examples=25)
@given(st.integers(0, 100_000), st.integers(0, 3))
def test_a_kill_at_any_byte_loses_at_most_the_line_being_written(
    tmp_path_factory: pytest.TempPathFactory, position: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("run")
    begun(path, count=count)
    results = path / "results.jsonl"
    whole = results.read_bytes()
    torn = make_outcome(5).to_json().encode() + b"\n"
    results.write_bytes(whole + torn[: position % len(torn)])
    with open_folder(path) as folder:
        assert [outcome.id for outcome in folder.outcomes.values()] == [f"p{n}" for n in range(count)]
        assert results.read_bytes() == whole


def test_a_line_whose_bytes_never_reached_the_disk_is_dropped(tmp_path: Path) -> None:
    begun(tmp_path)
    results = tmp_path / "results.jsonl"
    whole = results.read_bytes()
    results.write_bytes(whole + b"\0" * 80 + b"\n")
    assert drop_torn_line(results)
    assert results.read_bytes() == whole
    assert not drop_torn_line(results)


def test_damage_inside_the_file_is_reported_with_its_line(tmp_path: Path) -> None:
    begun(tmp_path, count=3)
    results = tmp_path / "results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(lines[0] + b'{"id": 3}\n' + lines[2])
    with pytest.raises(ResumeError, match=r"results\.jsonl, line 2: id: Input should be a valid string"):
        open_folder(tmp_path)
    results.write_bytes(lines[0] + lines[0])
    with pytest.raises(ResumeError, match="twice"):
        open_folder(tmp_path)


def test_line_separators_inside_a_text_do_not_split_a_line(tmp_path: Path) -> None:
    begun(tmp_path, count=1)
    (outcome,) = read_outcomes(tmp_path / "results.jsonl")
    assert outcome.response == "So.\u2028Then"


def test_results_without_their_settings_are_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "settings.yaml").unlink()
    with pytest.raises(ResumeError, match=r"without their settings\.yaml"):
        open_folder(tmp_path)
    (tmp_path / "settings.yaml").write_text("depth: 3\n")
    with pytest.raises(ResumeError, match="was not written by a run"):
        open_folder(tmp_path)


@pytest.mark.parametrize("content", ['{"id": 1}\n{"id": 2}', "mine, without a last line break"])
def test_a_refused_file_of_someone_else_is_left_as_it_was(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.jsonl").write_text(content)
    with pytest.raises(ResumeError, match=r"without their settings\.yaml"):
        open_folder(tmp_path)
    (tmp_path / "settings.yaml").write_text("depth: 3\n")
    with pytest.raises(ResumeError, match="was not written by a run"):
        open_folder(tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == content


def test_settings_hold_what_made_the_results(tmp_path: Path) -> None:
    begun(tmp_path)
    with open_folder(tmp_path) as folder:
        folder.begin_session("two", ["prompt_lookup"], {"target_cores": {"prompt_lookup": [0, 1]}})
        folder.end_session({"costs_at_work": {"c": 0.2}})
    content = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    assert content["settings"] == Settings().model_dump(mode="json")
    assert content["settings_hash"] == Settings().hash
    assert [session["session"] for session in content["sessions"]] == ["one", "two"]
    assert content["sessions"][1]["target_cores"] == {"prompt_lookup": [0, 1]}
    assert [session.get("costs_at_work") for session in content["sessions"]] == [None, {"c": 0.2}]
    assert "torch" in content["sessions"][0]["versions"]
    assert load_settings(tmp_path / "settings.yaml") == Settings()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process has open."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.evaluation.test_store import open_folder\n"
        "folder = open_folder(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    yield tmp_path / "run"
    other.kill()
    other.communicate()


def test_a_folder_in_use_is_refused_until_its_user_is_gone(locked: Path) -> None:
    with pytest.raises(ResumeError, match="in use by another run"):
        open_folder(locked)


def test_a_killed_user_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.evaluation.test_store import open_folder\n"
        "folder = open_folder(Path(sys.argv[1]))\nos.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], env=environment, check=False)
    with open_folder(tmp_path / "run") as folder:
        assert folder.outcomes == {}


def test_a_new_folder_that_gets_no_result_is_removed(tmp_path: Path) -> None:
    with open_folder(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a").is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with open_folder(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match=r"cannot be written.*--output"):
            open_folder(path)


def test_the_default_folder_tells_settings_apart_but_not_strategies() -> None:
    def name(**flags: object) -> str:
        settings = load_settings(flags={key.replace("__", "."): value for key, value in flags.items()})
        return Identity.of(settings, PROBLEMS, 1).hash

    assert name() == name(strategy__name="prompt_lookup")
    assert name() != name(strategy__depth=5)
    assert Identity.of(Settings(), PROBLEMS, 1).hash != Identity.of(Settings(), PROBLEMS, 2).hash


def test_keys_are_what_names_an_outcome() -> None:
    assert make_outcome(3, strategy="prompt_lookup", sample=2).key == UnitKey("p3", 2, "prompt_lookup")
    assert json.loads(make_outcome(3).to_json())["id"] == "p3"
