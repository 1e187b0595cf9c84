"""`reason-spec exit` and `tune exit`: from stored answers to a policy, its replay and its threshold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reason_spec.exit.policy import SHIPPED
from reason_spec.exit.reading_model import is_installed
from tests.cli_runner import fail, succeed
from tests.lab.exit.answers import write_answers, write_solved
from tests.pair.tiny import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exit")
    write_answers(folder / "answers.jsonl", 48)
    write_answers(folder / "others.jsonl", 48, "Ben")
    write_solved(folder / "solved.jsonl", 60)
    succeed(
        "exit", "train", str(folder / "answers.jsonl"), "--solved", str(folder / "solved.jsonl"),
        "--loss", "5", "--output", str(folder / "policy.json"),
    )  # fmt: skip
    return folder


def test_eval_replays_with_a_trained_policy(folder: Path) -> None:
    out = folder / "report.json"
    arguments = ["exit", "eval", str(folder / "others.jsonl"), "--policy", str(folder / "policy.json")]
    result = succeed(*arguments, "--json", str(out), "--png", str(folder / "curve.png"))
    assert "wordy" in result.stdout
    assert "was trained" not in result.stderr
    report = json.loads(out.read_text())
    assert report["n"] == 96
    assert 0 < report["tokens_kept"] < 1
    assert report["accuracy_before"] == pytest.approx(44 / 48)
    assert report["loss_upper95"] >= report["loss"]
    assert report["groups"]["brief"]["n"] == 48
    assert (folder / "curve.png").stat().st_size > 1000
    succeed(*arguments, "--threshold", "1", "--json", str(out), "--group", "brief")
    report = json.loads(out.read_text())
    assert (report["n"], report["tokens_kept"], report["lost"]) == (48, 1.0, 0)


def test_eval_uses_a_shipped_policy_by_default(folder: Path) -> None:
    arguments = ["exit", "eval", str(folder / "answers.jsonl"), "--limit", "4"]
    result = succeed(*arguments)
    assert "tokens kept" in result.stdout
    is_read_along = is_installed("models:smollm2-gsm8k")
    said = " ".join(result.stderr.split())
    assert ("read along, which is not installed" in said) == (not is_read_along)
    assert ("It reads the text alone" in said) == (not is_read_along)
    assert "It reads the text alone" in succeed(*arguments, "--text-only").stderr
    message = fail(*arguments, "--text-only", "--policy", str(folder / "policy.json"))
    assert "--text-only chooses among the policies that ship" in message


def test_a_small_model_reads_along_from_training_to_threshold(folder: Path, tmp_path: Path) -> None:
    model, out, report = (
        str(save_tiny(tmp_path / "tiny", seed=3)),
        tmp_path / "policy.json",
        tmp_path / "report.json",
    )
    succeed(
        "exit", "train", str(folder / "answers.jsonl"), "--solved", str(folder / "solved.jsonl"),
        "--loss", "5", "--reading-model", model, "--output", str(out),
    )  # fmt: skip
    assert json.loads(out.read_text())["reading"]["model"] == model
    arguments = [str(folder / "others.jsonl"), "--policy", str(out)]
    result = succeed("exit", "eval", *arguments, "--json", str(report))
    assert f"{model} read along" in " ".join(result.stderr.split())
    assert json.loads(report.read_text())["reading_model"] == model
    assert 0 < json.loads(report.read_text())["tokens_kept"] < 1
    assert "loses at most 20 points of answers" in succeed("tune", "exit", *arguments, "--loss", "20").stdout
    missing = str(tmp_path / "missing")
    message = fail(
        "exit", "train", str(folder / "answers.jsonl"), "--reading-model", missing, "--output", str(out)
    )
    assert missing in message


def test_tune_exit_writes_the_policy_with_the_chosen_threshold(folder: Path) -> None:
    arguments = ["tune", "exit", str(folder / "others.jsonl"), "--policy", str(folder / "policy.json")]
    out = folder / "tuned.json"
    found = json.loads(succeed(*arguments, "--loss", "20", "--output", str(out), "--json").stdout)
    assert found["loss_class"] == "shortened"
    assert json.loads(out.read_text())["threshold"] == found["threshold"]
    assert "loses at most 20 points of answers" in succeed(*arguments, "--loss", "20").stdout
    assert "48 problems with known answers are too few" in fail(*arguments, "--loss", "1")
    assert "--thresholds 95: name thresholds between 0 and 1" in fail(*arguments, "--thresholds", "95,0.9")


def test_a_policy_knows_the_questions_of_the_packaged_part_that_it_uses(folder: Path) -> None:
    out = folder / "unsolved.json"
    succeed("exit", "train", str(folder / "answers.jsonl"), "--loss", "5", "--output", str(out))
    known, packaged = (set(json.loads(path.read_text())["questions"]) for path in (out, SHIPPED))
    assert packaged < known
    assert not packaged & set(json.loads((folder / "policy.json").read_text())["questions"])


def test_errors_name_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n')
    assert "bad.jsonl, line 1: field 'response' is missing" in fail("exit", "eval", str(path))
    output = str(tmp_path / "p.json")
    assert "bad.jsonl, line 1" in fail("exit", "train", str(path), "--output", output)
    assert "no exit policy can be read" in fail("exit", "eval", str(path), "--policy", output)
    path.write_text("no JSON\n")
    message = fail("exit", "eval", str(path))
    assert "bad.jsonl, line 1: is not valid JSON" in message
    assert message.endswith("Repair or remove it.")


def test_answers_that_taught_a_policy_are_refused_for_its_threshold_and_warned_of_in_its_replay(
    folder: Path,
) -> None:
    arguments = [str(folder / "answers.jsonl"), "--policy", str(folder / "policy.json")]
    seen = "answers.jsonl: the policy was trained on answers to 48 of the 48 questions"
    assert seen in fail("tune", "exit", *arguments, "--loss", "20")
    assert seen in " ".join(succeed("exit", "eval", *arguments).stderr.split())


def ask(folder: Path, *more: str, about: str = "apples are left?") -> list[str]:
    """Arguments of a replay with a scripted model, which answers trials of some questions with 7."""
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": {about: "{7}\n\n" * 40}, "otherwise": None}))
    config = folder / "scripted.yaml"
    config.write_text(json.dumps({"target": {"kind": "scripted", "model": str(script)}}))
    return ["exit", "eval", str(folder / "others.jsonl"), "--config", str(config), *more]


def test_eval_asks_a_model_for_the_trial_answers_of_a_rule(folder: Path) -> None:
    out = folder / "asked.json"
    result = succeed(*ask(folder, "--rule", "deer", "--limit", "10", "--json", str(out)))
    assert "wordy" in result.stdout
    report = json.loads(out.read_text())
    assert (report["rule"], report["n"], report["groups"]["brief"]["n"]) == ("deer", 10, 5)
    assert 0 < report["num_trials"] <= 10
    assert report["num_trial_tokens"] > 0
    assert 0 < report["tokens_kept"] < 1
    assert report["lost"] > 0
    assert report["accuracy_after"] < report["accuracy_before"]
    assert report["loss_upper95"] >= report["loss"]


def test_a_replay_that_a_failed_trial_ends_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    first = json.loads((folder / "others.jsonl").read_text().splitlines()[0])["question"]
    out, report = tmp_path / "stops", tmp_path / "report.json"
    rule = ["--rule", "dynasor", "--set", "exit.probe_every=8", "--limit", "4", "--concurrency", "1"]
    unkept = fail(*ask(folder, *rule, about=first))
    assert "the script has no answer" in unkept
    assert "2 of 4 answers were replayed, and none is kept: --output FOLDER" in unkept
    kept = fail(*ask(folder, *rule, "--output", str(out), about=first))
    assert f"2 of 4 answers are kept in {out}; the same command goes on from there." in kept
    result = succeed(*ask(folder, *rule, "--output", str(out), "--json", str(report)))
    assert f"2 of 4 answers are in {out} already." in " ".join(result.stderr.split())
    resumed = json.loads(report.read_text())
    succeed(*ask(folder, *rule, "--json", str(report)))
    assert resumed == json.loads(report.read_text())
    assert resumed["num_trials"] > 4
    other = ["--output", str(out), "--set", "exit.probe_tokens=9"]
    assert "holds stops with other exit" in fail(*ask(folder, *rule, *other))
    succeed(*ask(folder, *rule, *other, "--fresh"))


def test_eval_refuses_what_a_rule_does_not_use(folder: Path) -> None:
    answers = str(folder / "others.jsonl")
    for option in (["--target", "embedded"], ["--output", "stops"], ["--fresh"]):
        assert f"{option[0]} is for rules that ask a model" in fail("exit", "eval", answers, *option)
    for option in (["--png", "curve.png"], ["--threshold", "0.5"], ["--policy", "policy.json"]):
        assert f"{option[0]} " in fail(*ask(folder, "--rule", "dynasor", *option))
    assert "--fresh needs --output" in fail(*ask(folder, "--rule", "deer", "--fresh"))
    assert "leave the draft out" in fail(*ask(folder, "--rule", "deer", "--draft", "embedded"))


def test_eval_says_which_model_it_needs(folder: Path) -> None:
    deer = ["exit", "eval", str(folder / "others.jsonl"), "--rule", "deer"]
    for unnamed in ([], ["--target-url", "http://localhost:1/v1"]):
        assert "name the one that wrote the answers with --target" in fail(*deer, *unnamed)
    assert "there is no model at './nothing'" in fail(*deer, "--target", "./nothing")
    undrafted = ask(folder, "--rule", "deer", "--set", "exit.probe_by=draft_first")
    assert "draft_first asks a draft: name it with --draft" in fail(*undrafted)


def test_an_answer_without_thinking_is_kept_as_it_is(folder: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "empty.jsonl", tmp_path / "report.json"
    file.write_text(json.dumps({"question": "q", "answer": "1", "response": "</think>1"}) + "\n")
    _, _, _, *options = ask(folder, "--rule", "probes", "--json", str(out))
    succeed("exit", "eval", str(file), *options)
    report = json.loads(out.read_text())
    assert (report["n"], report["stopped"], report["num_trials"], report["accuracy_after"]) == (1, 0, 0, 1)
