"""`benchmarks/agent_replay.py`: one row a case, on traces of every form, and what each case learns from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agent_replay import READ_ONLY, Trace, parts_of, read_all, read_only_calls, vocabulary_here

from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import Call, call_of
from tests.tools_ahead.some_conversations import messages_of

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "agent_replay.py"


def write_trials(path: Path, *trials: int, num_tasks: int = 16) -> Path:
    """Write results in tau-bench's form; the trials of a task are about one user."""
    lines = [
        {"task_id": task, "trial": trial, "reward": 1.0, "traj": messages_of(task, cancels=trial % 2 == 1)}
        for trial in trials
        for task in range(num_tasks)
    ]
    path.write_text(json.dumps(lines) if path.suffix == ".json" else "\n".join(map(json.dumps, lines)))
    return path


def traces(path: Path) -> list[Trace]:
    return read_all([path], vocabulary_here())


def test_no_conversation_is_learned_from_itself_or_its_task(tmp_path: Path) -> None:
    both = traces(write_trials(tmp_path / "a.jsonl", 0, 1))
    for case in ("other_trials", "other_tasks"):
        parts = parts_of(case, both, both)
        replayed = [test.recorded for part in parts for test in part.tests]
        assert sorted((r.task, r.trial) for r in replayed) == sorted(
            (t.recorded.task, t.recorded.trial) for t in both
        )
        for part in parts:
            pool = {(one.recorded.task, one.recorded.trial) for one in part.pool}
            for test in part.tests:
                one = test.recorded
                assert (one.task, one.trial) not in pool
                assert any(task == one.task for task, _ in pool) == (case == "other_trials")


def test_other_files_are_learned_from_whole(tmp_path: Path) -> None:
    tests, learn = (traces(write_trials(tmp_path / f"{n}.jsonl", n)) for n in (2, 0))
    (part,) = parts_of("other_trials", tests, learn)
    assert part.pool == learn
    assert part.tests == tests


@pytest.mark.parametrize(
    ("action", "reads"),
    [
        ("cat setup.py\n", True),
        ("ls -la src", True),
        ("cat > f.py <<'EOF'\nx = 1\nEOF", False),
        ("ls && rm f.py", False),
        ("ls; rm f.py", False),
        ("cat f.py | sh", False),
        ("cat $(rm f.py)", False),
        ("rm f.py", False),
    ],
)
def test_a_command_in_a_text_reads_only_if_it_is_of_one_program_that_reads(action: str, reads: bool) -> None:
    (written,) = TraceMessage(role="assistant", action=action).written_calls
    call = call_of(written)
    assert call is not None
    assert read_only_calls(READ_ONLY)(call) is reads
    assert read_only_calls(READ_ONLY)(Call.of("think", {"thought": "1 > 0; and so on"}))


@pytest.mark.slow
def test_the_script_writes_one_row_a_case(tmp_path: Path) -> None:
    tests = write_trials(tmp_path / "tests.json", 1)
    learn = write_trials(tmp_path / "learn.jsonl", 0, num_tasks=24)
    out = tmp_path / "rows.json"
    rules = ["--read-only", "get_user", "get_order"]
    command = [sys.executable, str(SCRIPT), str(tests), "--learn", str(learn), "--json", str(out), *rules]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads(out.read_text())
    assert [row["case"] for row in rows] == ["other_trials", "other_tasks"]
    for row in rows:
        assert set(row["by_tool"]) == {"get_user", "get_order"}
        assert set(row["by_trial"]) == {"1"}
        for split in ("by_tool", "by_trial", "by_task"):
            assert sum(part["n_read_only"] for part in row[split].values()) == row["n_read_only"]
            assert sum(part["n_right"] for part in row[split].values()) == row["n_right"]
        assert row["share_run_ahead"] > 0.6
        assert row["precision"] > 0.7
        assert row["tokens_per_pass"] > 1
        saved = row["seconds_saved"]
        assert saved["0.1"] <= saved["1"] <= saved["5"] < row["seconds"]["5"]
