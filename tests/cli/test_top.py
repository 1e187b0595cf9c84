"""``top`` against a real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator

import pytest

from reason_spec.cli.top_screens import Change, Snapshot, figures_of
from tests.cli_runner import fail, succeed
from tests.server.processes import ServeProcess, command, environment, scripted, serving, until

WORDS = "Ana has 12 apples.\n\nThe answer is 12."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("top")
    with serving(*scripted(folder, WORDS), cwd=folder) as process:
        until(lambda: process.status("/ready") == 200)
        process.ask("How many?")
        yield process


def test_the_figures_are_those_of_the_server(server: ServeProcess) -> None:
    before = json.loads(succeed("top", "--url", server.url, "--json").stdout)
    tokens = server.ask("How many?").json()["usage"]["completion_tokens"]
    after = json.loads(succeed("top", "--url", f"{server.url}/v1", "--json").stdout)
    assert after["model"] == "says"
    assert (after["running"], after["waiting"], after["sessions"]) == (0, 0, 0)
    assert (after["answers"] - before["answers"], after["tokens"] - before["tokens"]) == (1, tokens)
    assert after["draft_tokens_accepted"] is None, "nothing was drafted"


def test_a_table_is_printed_once_where_there_is_no_terminal(server: ServeProcess) -> None:
    shown = succeed("top", "--url", server.url).stdout
    assert "says: 0 running, 0 waiting" in shown
    assert "Speed-up over the target alone" in shown
    assert "since the start" in shown


def test_on_a_terminal_the_table_is_renewed_until_it_is_interrupted(server: ServeProcess) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("top", "--url", server.url, "--every", "0.2"), stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(COLUMNS="100", LINES="50", TERM="xterm"), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()

    def reads(text: bytes) -> bool:
        shown.extend(os.read(ours, 4096))
        return text in shown

    try:
        # The heading of the second look, which has a time before it.
        until(lambda: reads(b"last "))
        process.send_signal(signal.SIGINT)
        until(lambda: reads(b"Interrupted"))
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_figures_between_two_looks_are_of_that_time_alone() -> None:
    def snapshot(at: float, accepted: int, rejected: int, saved: float, spent: float) -> Snapshot:
        samples: tuple[tuple[str, dict[str, str], float], ...] = (
            ("reason_spec:verdicts_total", {"decision": "accept"}, accepted),
            ("reason_spec:verdicts_total", {"decision": "reject"}, rejected),
            ("reason_spec:seconds_saved_total", {}, saved),
            ("reason_spec:answer_seconds_total", {}, spent),
            ("vllm:generation_tokens_total", {}, 10 * at),
            ("reason_spec:speculation_mode", {}, 2.0),
            ("reason_spec:predicted_calls_total", {"tool": "a"}, 4 * at),
            ("reason_spec:predicted_calls_made_total", {"tool": "a"}, 3 * at),
            ("reason_spec:read_only_calls_total", {"tool": "a"}, 6 * at),
        )
        return Snapshot(at, "small", samples)

    before, now = snapshot(1.0, 10, 10, 4.0, 4.0), snapshot(3.0, 13, 11, 6.0, 8.0)
    recent, ever = Change(before, now).figures(), Change(None, now).figures()
    assert (recent["draft_steps_accepted"], ever["draft_steps_accepted"]) == (3 / 4, 13 / 24)
    assert (recent["speed_up"], ever["speed_up"]) == (1.5, 1.75)
    assert (recent["tokens_per_second"], ever["tokens_per_second"]) == (10.0, None)
    assert recent["draft_tokens_accepted"] is None
    assert (recent["predicted_calls_made"], recent["read_only_calls_predicted"]) == (3 / 4, 1 / 2)
    assert figures_of(before, now)["mode"] == "steps"
    restarted = Change(now, snapshot(5.0, 1, 3, 1.0, 4.0)).figures()
    assert (restarted["draft_steps_accepted"], restarted["speed_up"]) == (1 / 4, 1.25)
    assert (restarted["tokens"], restarted["tokens_per_second"]) == (50, 25.0), "all since the restart"


def test_an_address_without_a_server_is_refused_with_the_way_to_start_one() -> None:
    assert "Start one with: reason-spec serve" in fail("top", "--url", "http://127.0.0.1:9", "--once")
    assert "no server answers" in fail("top", "--url", "nonsense", "--once")
