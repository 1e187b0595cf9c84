from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reason_spec.errors import MissingDependencyError, SettingsError
from reason_spec.tasks import Grader, get_task, load_problems

DATA = Path(__file__).parent.parent / "data" / "problems"
FILES = {
    "gsm8k_test": "gsm8k",
    "gsm8k_train": "gsm8k",
    "aime24": "aime",
    "amc23": "amc",
    "math500": "math500",
    "math_responses": "math500",
    "svamp": "svamp",
    "multiarith": "multiarith",
}
HANGS = "(x+1)^{1000000}"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(deadline_seconds=60) as shared:
        yield shared


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("as_auto", [False, True])
def test_real_references_grade_correct_against_themselves_and_wrong_when_changed(
    grader: Grader, name: str, as_auto: bool
) -> None:
    task = "auto" if as_auto else FILES[name]
    problems = load_problems(DATA / f"{name}.jsonl", task).problems
    assert len(problems) >= 4
    for index, problem in enumerate(problems):
        assert problem.answer is not None
        answer = problem.answer
        for response in (
            answer,
            f"\\boxed{{{answer}}}",
            f"So: the answer is ${answer}$.",
            f"Work.\n#### {answer}",
        ):
            grade = grader.grade(response, answer, task)
            assert grade.correct is True, (response, answer, grade)
        other = problems[index - 1].answer
        wrong = [f"{answer} + 1" if task in ("math500", "auto") else f"{answer}1"]
        wrong += [other] if other is not None and other != answer else []
        for prediction in wrong:
            grade = grader.grade(f"\\boxed{{{prediction}}}", answer, task)
            assert grade.correct is False, (prediction, answer, grade)


@pytest.mark.parametrize(
    ("reference", "prediction", "correct"),
    [
        ("033", "33", True),
        ("18", "18.00", True),
        ("18", "18.01", False),
        ("18", "2 \\cdot 9", True),
        ("18", "2**4 + 2", True),
        ("18", "nothing", False),
        ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}", True),
        ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{2}}", False),
        ("p - q", "-q + p", True),
        ("p - q", "q - p", False),
        ("x=5", "5", True),
        ("5", "x=5", True),
        ("5", "6 = x", False),
        ("1,-2", "-2, 1", True),
        ("1,-2", "1, 2", False),
        ("3, 5, 7", "7, 5, 3", True),
        ("1 \\pm \\sqrt{19}", "1+\\sqrt{19}, 1-\\sqrt{19}", True),
        ("(3,4]", "(3, 4]", True),
        ("(3,4]", "[3, 4]", False),
        ("(-\\infty, 2) \\cup (3, \\infty)", "(3,\\infty)\\cup(-\\infty,2)", True),
        ("x \\in [-2,7]", "[-2,7]", True),
        ("(8,-2)", "(-2,8)", False),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)", True),
        (
            "\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}",
            "\\begin{pmatrix} -\\frac13 \\\\ \\frac23 \\end{pmatrix}",
            True,
        ),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}", False),
        (".0000672", "\\frac{6.72}{100000}", True),
        (".0000672", "\\frac{6.73}{100000}", False),
        ("\\sqrt{2}", "1.41421356", True),
        ("\\sqrt{2}", "1.42", False),
        ("52_8", "52_{8}", True),
        ("52_8", "52", True),
        ("52_8", "52_9", False),
        ("52_8", "42_{10}", True),
        ("90^\\circ", "90", True),
        ("15\\mbox{ cm}^2", "15", True),
        ("5.4 \\text{ cents}", "5.4", True),
        ("\\$18.90", "18.90", True),
        ("\\text{Evelyn}", "Evelyn", True),
        ("\\text{Evelyn}", "\\textbf{evelyn}", True),
        ("\\text{Evelyn}", "Carla", False),
        ("\\text{(C)}", "C", True),
        ("\\text{(C)}", "(C) 12", True),
        ("\\text{(C)}", "\\text{(D)}", False),
        ("\\text{(C)}", "\\text{(C)}+1", False),
        ("6", "3!", True),
        ("27", "\\textbf{(C)}\\ 27", True),
        ("4:30 p.m.", "4:30 \\text{ p.m.}", True),
        ("4:30 p.m.", "4:31 p.m.", False),
        ("y = 2x + 3", "y = 3 + 2x", True),
        ("6 - 5i", "-5i + 6", True),
        ("\\cot x", "\\frac{\\cos x}{\\sin x}", True),
        ("(a+5)(b+2)", "ab + 2a + 5b + 10", True),
        ("5r^5", "5r^4", False),
    ],
)
def test_prediction_is_compared_by_meaning(
    grader: Grader, reference: str, prediction: str, correct: bool
) -> None:
    grade = grader.grade_prediction(prediction, reference, "math500")
    assert grade.correct is correct, grade


def test_whole_responses_are_graded_as_labelled(grader: Grader) -> None:
    records = [json.loads(line) for line in (DATA / "math_responses.jsonl").read_text("utf-8").splitlines()]
    graded = [
        (grader.grade(response, record["answer"], "math500"), label)
        for record in records
        for response, label in zip(record["response"], record["score"], strict=True)
    ]
    assert {label for _, label in graded} == {True, False}
    assert [(grade.prediction, label) for grade, label in graded if grade.correct is not label] == []


def test_response_without_an_answer_is_wrong_and_says_so(grader: Grader) -> None:
    grade = grader.grade("I do not know.", "18", "gsm8k")
    assert grade.prediction is None
    assert grade.correct is False
    assert "no answer" in grade.reason


def test_hanging_comparison_is_ungraded_and_the_next_one_is_graded() -> None:
    with Grader(deadline_seconds=1) as grader:
        grades = [
            grader.grade_prediction(prediction, "x+1", "math500") for prediction in (HANGS, "9^{9^{9^9}}")
        ]
        assert [grade.correct for grade in grades] == [None, None]
        assert all(grade.reason == "timed out after 1 s" for grade in grades)
        # The first comparison of a fresh worker is slow: sympy builds its tables.
        grader._deadline_seconds = 60
        assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_worker_that_dies_leaves_one_item_ungraded() -> None:
    with Grader(deadline_seconds=60) as grader:
        assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True
        assert grader._worker is not None
        pid = grader._worker._process.pid
        killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
        killer.start()
        grade = grader.grade_prediction(HANGS, "x+1", "math500")
        killer.join()
        assert grade.correct is None
        assert "died" in grade.reason
        assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True


def test_oversized_expression_is_ungraded_without_being_parsed(grader: Grader) -> None:
    grade = grader.grade_prediction("x+" * 5000 + "x", "5001x", "math500")
    assert grade.correct is None
    assert "longer than" in grade.reason


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce the limit")
def test_memory_of_the_worker_is_limited() -> None:
    with Grader(deadline_seconds=60, memory_bytes=600 << 20) as grader:
        assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True
        assert grader._worker is not None
        limits = Path(f"/proc/{grader._worker._process.pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
        assert str(600 << 20) in line


def test_plain_numbers_never_start_the_worker() -> None:
    grader = Grader()
    for response, answer in [
        ("#### 1,080", "1080"),
        ("The answer is $18.00.", "18"),
        ("\\boxed{\\frac12}", "0.5"),
    ]:
        assert grader.grade(response, answer, "gsm8k").correct is True
    assert grader.grade("I think it is 17", "18", "gsm8k").correct is False
    assert grader.grade("no idea", "18", "gsm8k").correct is False
    assert grader._worker is None


def test_importing_the_tasks_imports_no_sympy() -> None:
    code = "import sys, reason_spec.tasks; sys.exit('sympy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), check=False).returncode == 0


def test_a_large_parent_does_not_count_as_the_workers_memory() -> None:
    ballast = bytearray(700 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    with Grader(deadline_seconds=60) as grader:
        assert grader.grade_prediction("1.42", "\\sqrt{2}", "math500").correct is False
    del ballast


def test_threads_share_one_grader(grader: Grader) -> None:
    with ThreadPoolExecutor(8) as pool:
        grades = list(
            pool.map(lambda i: grader.grade_prediction(f"{i} + x", f"x + {i // 2 * 2}", "math500"), range(16))
        )
    assert [grade.correct for grade in grades] == [i % 2 == 0 for i in range(16)]


async def test_event_loop_keeps_running_while_an_answer_is_graded() -> None:
    with Grader(deadline_seconds=2) as grader:
        hanging = [
            asyncio.create_task(grader.grade_async(f"\\boxed{{{HANGS}}}", "x+1", "math500")) for _ in range(2)
        ]
        await asyncio.sleep(0)  # both tasks reach the grader's thread
        grade = await grader.grade_async("#### 18", "18", "gsm8k")
        assert grade.correct is True
        assert not any(task.done() for task in hanging)
        assert [grade.correct for grade in await asyncio.gather(*hanging)] == [None, None]


def test_interrupt_leaves_no_stale_reply() -> None:
    with Grader(deadline_seconds=60) as grader:
        assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True
        previous = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                grader.grade_prediction(HANGS, "x+1", "math500")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert grader.grade_prediction("2 + x", "x+1", "math500").correct is False


def test_closed_grader_leaves_no_process() -> None:
    grader = Grader(deadline_seconds=60)
    assert grader.grade_prediction("1 + x", "x+1", "math500").correct is True
    assert grader._worker is not None
    process = grader._worker._process
    grader.close()
    assert process.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("busy", [False, True])
def test_worker_ends_when_its_parent_is_killed(busy: bool) -> None:
    code = (
        "import threading, time\n"
        "from reason_spec.tasks import Grader\n"
        "grader = Grader(deadline_seconds=60)\n"
        "assert grader.grade_prediction('1 + x', 'x+1', 'math500').correct\n"
        f"busy = {busy}\n"
        f"arguments = ({HANGS!r}, 'x+1', 'math500')\n"
        "if busy: threading.Thread(target=grader.grade_prediction, args=arguments).start()\n"
        "time.sleep(0.5)\n"
        "print(grader._worker._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=_environment(), text=True
    )
    assert parent.stdout is not None
    worker_pid = int(parent.stdout.readline())
    assert _is_running(worker_pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while _is_running(worker_pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(worker_pid)


def test_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with Grader() as grader:
        assert grader.grade("#### 18", "18", "gsm8k").correct is True
        with pytest.raises(MissingDependencyError, match="pip install"):
            grader.grade_prediction("1 + x", "x+1", "math500")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_deadline_must_be_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(SettingsError, match="deadline_seconds"):
        Grader(deadline_seconds=seconds)


def test_memory_limit_must_leave_room_for_sympy() -> None:
    with pytest.raises(SettingsError, match="memory_bytes"):
        Grader(memory_bytes=1 << 20)


def test_response_kind_follows_the_task(grader: Grader) -> None:
    assert get_task("math500").kind == "expression"
    assert grader.grade("The answer is $2k+2$.", "2(k+1)", "math500").correct is True


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
