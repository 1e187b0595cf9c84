"""Workers of a real server over the demonstration pair that are stopped and killed, with real clients."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from reason_spec.pair import SAMPLE_PATH
from tests.running_processes import is_alive
from tests.server.processes import CHAT, ServeProcess, serving, until

QUESTIONS = [json.loads(line)["question"] for line in SAMPLE_PATH.read_text().splitlines()[:12]]
HANG_SECONDS = 6.0
WIDE_SECONDS = 20.0
"""What may pass beyond a bound on a machine that does much else."""
pytestmark = pytest.mark.timeout(400)


class Reply(NamedTuple):
    """What a client was answered: a text that is whole, or an error; and after how long."""

    status: int
    text: str
    error: str | None
    seconds: float


class Workers:
    """The workers of a server, distinguished though one is started again."""

    def __init__(self, server: ServeProcess) -> None:
        self._server = psutil.Process(server.process.pid)
        # The target's is started first.
        self.target, self.draft = sorted(self._server.children(), key=lambda one: one.create_time())

    def find_again(self) -> None:
        """Look for the process in the place of one that is gone."""
        new = [one for one in self._server.children() if one not in (self.target, self.draft)]
        if new:
            role = "draft" if is_alive(self.target) else "target"
            setattr(self, role, new[0])

    @property
    def alive(self) -> list[psutil.Process]:
        return [one for one in (self.target, self.draft) if is_alive(one)]


@contextmanager
def serving_pair(folder: Path, *options: str, strategy: str = "speculative") -> Iterator[ServeProcess]:
    """Serve the pair, unplanned, so that the draft works for every answer; nothing is left of it."""
    hangs = [
        part for role in ("target", "draft") for part in ("--set", f"{role}.hang_timeout={HANG_SECONDS}")
    ]
    fixed = ["--set", "strategy.planner=false", "--set", 'load_control.use="off"', "--set", "suffix.use=none"]
    with serving("--strategy", strategy, *fixed, *hangs, *options, cwd=folder) as server:
        workers = Workers(server)
        yield server
    until(lambda: not workers.alive)


def ask(server: ServeProcess, question: str, *, stream: bool, most: int = 256) -> Reply:
    started = time.monotonic()
    body = server.body(question, stream=stream, max_tokens=most, temperature=0)
    if not stream:
        response = server.http.post(CHAT, json=body)
        said = response.json()
        error = said["error"]["code"] if "error" in said else None
        text = "" if error else said["choices"][0]["message"]["content"]
        return Reply(response.status_code, text, error, time.monotonic() - started)
    with server.http.stream("POST", CHAT, json=body) as response:
        text, error, is_whole = "", None, False
        for line in response.iter_lines():
            found = said_by(line)
            is_whole = is_whole or found == "[DONE]"
            if isinstance(found, dict) and "error" in found:
                error = found["error"]["code"]
            elif isinstance(found, dict):
                text += "".join(choice["delta"].get("content") or "" for choice in found["choices"])
        assert is_whole or error, "a stream ended without a word about why"
        return Reply(response.status_code, text, error, time.monotonic() - started)


def said_by(line: str) -> dict[str, Any] | str | None:
    line = line.removeprefix("data: ")
    return json.loads(line) if line.startswith("{") else line


def asking(
    pool: ThreadPoolExecutor, server: ServeProcess, *, stream: bool | None = None, **more: Any
) -> list[Future[Reply]]:
    """Ask all questions at once; every second one streams where ``stream`` does not say."""
    return [
        pool.submit(ask, server, question, stream=bool(place % 2) if stream is None else stream, **more)
        for place, question in enumerate(QUESTIONS)
    ]


def is_writing(server: ServeProcess) -> bool:
    return count(server, "running") >= 1


def count(server: ServeProcess, state: str) -> int:
    """Return how many requests are ``running`` or ``waiting``."""
    lines = server.http.get("/metrics").text.splitlines()
    found = next(line for line in lines if line.startswith(f"vllm:num_requests_{state}"))
    return int(float(found.split()[-1]))


def all_let_in(server: ServeProcess, replies: Sequence[Future[Reply]]) -> bool:
    """Return whether the server has let all requests in and still writes answers to some of them."""
    # Counted before the metrics are read, so that no request is counted twice.
    num_done = sum(reply.done() for reply in replies)
    num_running = count(server, "running")
    return num_running >= 1 and num_done + num_running + count(server, "waiting") >= len(replies)


def is_ready(server: ServeProcess) -> bool:
    return server.status("/ready") == 200 and server.status("/health") == 200


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the pair answers where nothing happens."""
    with serving_pair(tmp_path_factory.mktemp("whole")) as server, ThreadPoolExecutor(4) as pool:
        return [reply.result().text for reply in asking(pool, server, stream=False)]


def test_deadlines_hold_while_the_target_is_stopped_and_it_comes_back(tmp_path: Path) -> None:
    limit = 3.0
    with serving_pair(tmp_path, "--set", f"server.request_timeout={limit}") as server:
        stopped = Workers(server).target
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            stopped.suspend()
            replies = [reply.result() for reply in asking(pool, server)]
        assert {reply.error for reply in replies} == {"deadline_exceeded"}
        assert all(reply.status == 504 for reply in replies[::2])
        assert max(reply.seconds for reply in replies) < limit + WIDE_SECONDS
        until(lambda: server.status("/ready") == 503)
        said = server.http.get("/health")
        assert said.status_code == 503
        assert set(said.json()["engines"]) == {"target"}
        assert any(word in said.json()["engines"]["target"] for word in ("no sign of life", "started again"))
        refused = ask(server, QUESTIONS[0], stream=False)
        assert (refused.status, refused.error) == (503, "engine_unavailable")
        until(lambda: is_ready(server))
        assert not is_alive(stopped)
        until(lambda: not is_writing(server))
        assert ask(server, QUESTIONS[0], stream=False, most=8).error is None


@pytest.mark.slow
def test_what_a_lost_target_had_not_begun_to_stream_is_written_anew(tmp_path: Path, texts: list[str]) -> None:
    with serving_pair(tmp_path) as server:
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            replies = asking(pool, server, stream=False)
            # A request that arrives while the target is restarted is refused.
            until(lambda: all_let_in(server, replies))
            Workers(server).target.kill()
            until(lambda: server.status("/ready") == 503)
            assert "started again" in server.http.get("/ready").json()["engines"]["target"]
            answered = [reply.result() for reply in replies]
        assert [reply.error for reply in answered] == [None] * len(QUESTIONS)
        assert [reply.text for reply in answered] == texts
        assert is_ready(server)
        died = [line for line in server.log() if "SIGKILL" in line["message"]]
        assert died


@pytest.mark.slow
def test_requests_in_the_queue_wait_for_a_lost_target(tmp_path: Path, texts: list[str]) -> None:
    num_places = 2
    with serving_pair(tmp_path, "--set", f"server.max_running_requests={num_places}") as server:
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            replies = asking(pool, server, stream=True)
            # Beside the first that is done another has begun. It ends with an error, and its place goes to
            # the queue while the target is restarted.
            until(lambda: any(reply.done() for reply in replies) and all_let_in(server, replies))
            assert count(server, "waiting") > num_places
            Workers(server).target.kill()
            answered = [reply.result() for reply in replies]
        errors = [reply.error for reply in answered if reply.error is not None]
        assert errors == ["engine_error"] * len(errors)
        assert len(errors) <= num_places
        for reply, text in zip(answered, texts, strict=True):
            assert reply.text == text or (reply.error and text.startswith(reply.text))
        assert is_ready(server)


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("speculative", signal.SIGKILL),
        pytest.param("lookahead", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("specreason", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("speculative", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_a_lost_draft_leaves_the_target_alone_and_is_used_again(
    tmp_path: Path, strategy: str, how: signal.Signals
) -> None:
    options = ["--verifier", "exact"] if strategy == "lookahead" else []
    with serving_pair(tmp_path, *options, strategy=strategy) as server:
        draft = Workers(server).draft
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            texts = [reply.result().text for reply in asking(pool, server, stream=False)]
            replies = asking(pool, server)
            until(lambda: is_writing(server))
            draft.send_signal(how)
            answered = [reply.result() for reply in replies]
        assert {reply.error for reply in answered} == {None}
        if strategy != "specreason":
            assert [reply.text for reply in answered] == texts
        until(lambda: is_ready(server))
        assert not is_alive(draft)
        said = server.ask(QUESTIONS[0], max_tokens=128).json()["reason_spec"]
        assert said["tokens"]["draft"]["generated"] > 0, said


@pytest.mark.slow
def test_workers_that_are_lost_in_turn_lose_no_answer_in_silence(tmp_path: Path, texts: list[str]) -> None:
    with serving_pair(tmp_path) as server:
        whole, workers = 0, Workers(server)
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            for role, how in (
                ("target", signal.SIGKILL),
                ("draft", signal.SIGKILL),
                ("target", signal.SIGSTOP),
            ):
                replies = asking(pool, server)
                until(lambda: is_writing(server))
                getattr(workers, role).send_signal(how)
                for place, reply in enumerate(one.result() for one in replies):
                    assert reply.error in (None, "engine_error", "engine_unavailable"), reply
                    assert texts[place].startswith(reply.text)
                    if reply.error is None:
                        whole += 1
                        assert reply.text == texts[place]
                until(lambda: is_ready(server))
                workers.find_again()
                assert len(workers.alive) == 2
        assert whole > 0
        assert ask(server, QUESTIONS[0], stream=True).text == texts[0]


@pytest.mark.parametrize("role", ["target", pytest.param("draft", marks=pytest.mark.slow)])
def test_the_server_ends_though_a_worker_hangs(tmp_path: Path, role: str) -> None:
    with serving_pair(tmp_path, "--set", "server.drain_seconds=1") as server:
        found = Workers(server)
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            replies = asking(pool, server, stream=True)
            until(lambda: is_writing(server))
            getattr(found, role).suspend()
            server.process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert server.end() == 0
            assert time.monotonic() - started < 1 + WIDE_SECONDS
            # Those that came late were refused at once.
            assert {one.result().error for one in replies} <= {"server_stopped", "server_overloaded", None}
        until(lambda: not found.alive)


@pytest.mark.slow
def test_a_second_signal_ends_the_server_and_a_worker_that_hangs_at_once(tmp_path: Path) -> None:
    with serving_pair(tmp_path, "--set", "server.drain_seconds=300") as server:
        found = Workers(server)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, server, QUESTIONS[0], stream=True)
            until(lambda: is_writing(server))
            found.target.suspend()
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.status("/ready") == 503)
            server.process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert server.end() == -signal.SIGTERM
            assert time.monotonic() - started < WIDE_SECONDS
            assert asked.exception() is not None
        until(lambda: not found.alive)
