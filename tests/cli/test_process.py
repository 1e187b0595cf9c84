"""The command as a process of its own: streaming, kills, interrupts, locks and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from reason_spec.pair import SAMPLE_PATH
from tests.evaluation.problems import World, build_world

ROOT = Path(__file__).parents[2]
BOTH = "autoregressive,lookahead"
PATIENCE_SECONDS = 280.0


def command(*arguments: str) -> list[str]:
    code = "from reason_spec.cli.main import main; main()"
    return [sys.executable, "-c", code, *arguments]


def environment() -> dict[str, str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith("REASON_SPEC_")}
    return {**names, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm"}


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
    # Its own process group: an interrupt sent to it does not reach the tests.
    return subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(path: Path, wanted: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while num_lines(path) < wanted and process.poll() is None:
        assert time.monotonic() < deadline, f"{num_lines(path)} of {wanted} lines after {PATIENCE_SECONDS} s"
        time.sleep(0.005)


def answers(path: Path) -> dict[tuple[str, int, str], str]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(item["id"], item["sample"], item["strategy"]): item["response"] for item in records}
    assert len(found) == len(records), "an answer is stored twice"
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return build_world(tmp_path / "world", 8, target_seconds=0.002)


def test_kills_lose_nothing_and_double_nothing(world: World, tmp_path: Path) -> None:
    arguments = world.arguments("--compare", BOTH)
    whole = run(*arguments, "--output", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    expected = answers(tmp_path / "whole" / "results.jsonl")
    assert len(expected) == 8 * 2

    results = tmp_path / "killed" / "results.jsonl"
    for kill_at in (1, 6, 11):
        process = start(*arguments, "--output", "killed", cwd=tmp_path)
        wait_for_lines(results, kill_at, process)
        process.kill()
        process.communicate()
        assert num_lines(results) >= kill_at
    last = run(*arguments, "--output", "killed", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert "of 16 answers are in killed already" in last.stderr
    assert answers(results) == expected
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["strategies"][0]["num_answers"] == 8


def test_a_torn_last_line_is_written_again(world: World, tmp_path: Path) -> None:
    arguments = world.arguments("--output", "out")
    assert run(*arguments, cwd=tmp_path).returncode == 0
    results = tmp_path / "out" / "results.jsonl"
    expected = answers(results)
    results.write_bytes(results.read_bytes()[:-40])
    again = run(*arguments, cwd=tmp_path)
    assert "7 of 8 answers are in out already" in again.stderr
    assert answers(results) == expected


def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(world: World, tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 8, target_seconds=0.02)
    arguments = slow.arguments("--output", "out")
    process = start(*arguments, cwd=tmp_path)
    wait_for_lines(tmp_path / "out" / "results.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    said = errors.decode()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    kept = num_lines(tmp_path / "out" / "results.jsonl")
    assert f"{kept} answers are kept in out; the same command goes on from there." in said
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["complete"] is False
    again = run(*arguments, cwd=tmp_path)
    assert again.returncode == 0
    assert len(answers(tmp_path / "out" / "results.jsonl")) == 8


def test_an_interrupted_question_ends_at_once(tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 2, target_seconds=0.4)
    process = start("solve", slow.sums[1].question, *slow.options(), cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"draft")
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert errors.decode().strip().endswith("Interrupted.")
    assert b"The answer is" not in rest


def test_an_interrupt_says_that_another_one_leaves_at_once(tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 2, target_seconds=0.4)
    process = start("solve", slow.sums[1].question, *slow.options(), cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert b"Stopping; Ctrl-C again leaves at once." in errors


def test_a_second_interrupt_does_not_wait_for_the_clean_up(tmp_path: Path) -> None:
    code = (
        "import asyncio, time\n"
        "from reason_spec.cli.command import run_interruptible\n"
        "async def work():\n"
        "    print('working', flush=True)\n"
        "    try: await asyncio.sleep(1000)\n"
        "    finally:\n"
        "        print('cleaning up', flush=True)\n"
        "        await asyncio.to_thread(time.sleep, 1000)\n"
        "run_interruptible(work())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    for expected in (b"working\n", b"cleaning up\n"):
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGINT
    assert errors.decode() == "\nStopping; Ctrl-C again leaves at once.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("options", [(), ("--quiet",), ("--json",)])
def test_an_output_that_is_full_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    world = build_world(tmp_path / "world", 2)
    commands = [
        world.arguments("--output", "out", *options),
        ["solve", world.sums[1].question, *world.options(*options)],
        ["--help"],
    ]
    for arguments in commands:
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                command(*arguments), cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE,
                text=True, check=False,
            )  # fmt: skip
        assert result.returncode == 1, result.stderr
        assert result.stderr.splitlines()[-1] == (
            "error: the output cannot be written (No space left on device)"
        )
        assert "Traceback" not in result.stderr
    assert num_lines(tmp_path / "out" / "results.jsonl") == 2


def test_the_package_runs_as_a_program(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "reason_spec", "settings"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.startswith("target:\n")


def test_an_interrupt_while_modules_are_imported_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    result = subprocess.run(
        [sys.executable, "-m", "reason_spec", "--help"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (130, "Interrupted.\n")


def test_steps_of_a_question_arrive_before_the_answer_is_complete(tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 2, target_seconds=0.2)
    process = start("solve", slow.sums[1].question, *slow.options("--quiet"), cwd=tmp_path, bufsize=0)
    assert process.stdout is not None
    first = process.stdout.readline().decode()
    assert first == "The box holds 3 pens.\n"
    assert process.poll() is None
    rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert first + rest.decode() == slow.sums[1].answer() + "\n"


def test_a_second_run_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 8, target_seconds=0.05)
    arguments = slow.arguments("--output", "out")
    first = start(*arguments, cwd=tmp_path)
    try:
        wait_for_lines(tmp_path / "out" / "results.jsonl", 1, first)
        first.send_signal(signal.SIGSTOP)
        second = run(*arguments, cwd=tmp_path)
        assert second.returncode == 2
        assert "out is in use by another run" in second.stderr
    finally:
        first.kill()
        first.communicate()


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    slow = build_world(tmp_path / "slow", 2, target_seconds=0.4)
    process = start("solve", slow.sums[1].question, *slow.options(), cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    process.wait(PATIENCE_SECONDS)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_an_error_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    result = run("solve", "missing.jsonl", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "error: missing.jsonl: there is no such file.\n"


def test_a_terminal_without_unicode_gets_an_answer_all_the_same(tmp_path: Path) -> None:
    world = build_world(tmp_path / "world", 1, otherwise="Zoë is 5 — oui.")
    result = subprocess.run(
        command("solve", "Qui?", *world.options("--strategy", "autoregressive")),
        cwd=tmp_path, env={**environment(), "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert b"Zo? is 5 ? oui." in result.stdout


# On a terminal -------------------------------------------------------------------------------


def on_terminal(*arguments: str, cwd: Path, columns: int = 80) -> str:
    """Run the command with a terminal so wide and return everything written to it."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(*arguments), cwd=cwd, env={**environment(), "COLUMNS": str(columns)},
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    shown = bytearray()
    while True:
        ready, _, _ = select.select([leader], [], [], PATIENCE_SECONDS)
        try:
            chunk = os.read(leader, 65536) if ready else b""
        except OSError:  # how Linux reports that the other side is closed
            chunk = b""
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait(PATIENCE_SECONDS) == 0, shown.decode()
    return shown.decode()


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def test_a_terminal_shows_colours_and_folds_long_steps(tmp_path: Path) -> None:
    long = "The box is " + "very " * 40 + "full.\n\nThe answer is 7."
    world = build_world(tmp_path / "world", 1, otherwise=long)
    shown = on_terminal("solve", "How?", *world.options(), cwd=tmp_path)
    assert "\x1b[32m" in shown or "\x1b[1;32m" in shown
    lines = without_colour(shown).splitlines()
    step = [line for line in lines if " | " in line and "tokens/s" not in line]
    assert step[0].startswith("draft    | The box is very")
    assert step[1].startswith("         | very")
    assert max(map(len, step)) <= 80
    assert "Loading target" in shown


def test_a_terminal_shows_a_live_bar_that_is_gone_at_the_end(tmp_path: Path) -> None:
    world = build_world(tmp_path / "world", 4, target_seconds=0.01)
    shown = on_terminal(*world.arguments("--compare", BOTH, "--output", "out"), cwd=tmp_path)
    text = without_colour(shown)
    assert re.search(r"lookahead +\S+ +\d/4 +[-\d:]+ [\d.]+ % right, [\d.]+ s, ", text)
    table = text[text.rindex("loss class") :]
    assert " right, " not in table
    assert "Results: out" in table


def test_a_table_too_wide_for_the_terminal_is_shown_strategy_by_strategy(tmp_path: Path) -> None:
    world = build_world(tmp_path / "world", 2)
    names = ("autoregressive", "prompt_lookup", "lookahead")
    shown = on_terminal(
        *world.arguments("--compare", ",".join(names), "--output", "out"), cwd=tmp_path, columns=42
    )
    text = without_colour(shown)
    heads = [line.strip() for line in text.splitlines() if line.strip() in names]
    assert heads[-3:] == list(names)
    rows = [line.split() for line in text.splitlines() if line.startswith("correct ")]
    assert [row[1:] for row in rows] == [["1", "of", "2"]] * 3


def test_help_loads_no_model_library(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom reason_spec.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'sklearn', 'sentence_transformers', 'sympy') "
        "if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "solve", "--help"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("role", [0, 1], ids=["target", "draft"])
def test_a_run_whose_worker_hangs_says_so_and_goes_on_when_it_is_run_again(tmp_path: Path, role: int) -> None:
    """With the demonstration pair."""
    output = tmp_path / "run"
    fixed = ["--strategy", "speculative", "--max-tokens", "200", "--output", str(output)]
    hangs = [part for name in ("target", "draft") for part in ("--set", f"{name}.hang_timeout=6")]
    first = start("solve", str(SAMPLE_PATH), *fixed, *hangs, cwd=tmp_path)
    results = output / "results.jsonl"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while num_lines(results) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = sorted(psutil.Process(first.pid).children(), key=lambda one: one.create_time())
    workers[role].suspend()
    _, said = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode != 0
    assert b"no sign of life" in said
    assert b"Traceback" not in said
    assert not any(worker.is_running() for worker in workers)
    num_before = num_lines(results)
    second = run("solve", str(SAMPLE_PATH), *fixed, *hangs, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert num_before < num_lines(results) == num_lines(SAMPLE_PATH)
