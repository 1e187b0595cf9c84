"""Two pairs behind one address: sessions stay, load is spread, and a killed pair is replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("ray")
pytest.importorskip("grpc")
pytestmark = pytest.mark.harness

from tests.server.processes import CHAT, command, environment, scripted, until

ANSWER = "Ana has 12 apples.\n\nThe answer is 12."


class Address:
    """The address before the pairs."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        self._process = process

    def ready(self) -> bool:
        try:
            return self._http.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def ask(self, session: str | None = None) -> str:
        body = {"model": "says", "messages": [{"role": "user", "content": "How many?"}]}
        headers = {} if session is None else {"x-session-id": session}
        response = self._http.post(CHAT, json=body, headers=headers)
        response.raise_for_status()
        text: str = response.json()["choices"][0]["message"]["content"]
        return text

    def ask_until_answered(self) -> str:
        """As OpenAI's clients do: try again where the connection or the server failed."""
        for _ in range(20):
            try:
                return self.ask()
            except httpx2.HTTPError:
                time.sleep(0.5)
        raise AssertionError("no answer in 20 tries")

    def answered(self, session: str) -> float:
        """Return the answers of the pair that has a session."""
        text = self._http.get("/metrics", headers={"x-session-id": session}).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "vllm:request_success_total"
        )

    def pairs(self) -> set[int]:
        """Return the processes of the pairs that run."""
        found = set()
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if line.startswith("ray::ServeReplica") and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        return found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    folder = tmp_path_factory.mktemp("replicas")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = scripted(folder, ANSWER, seconds_per_pass=0.02)
    options += ["--ray", "local:2", "--port", str(port), "--set", "server.served_models=says"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command("serve", *options), cwd=folder, env=environment(), stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    found = Address(port, psutil.Process(process.pid))
    try:
        until(lambda: found.ready() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(120) == 0, (folder / "log").read_text()
        finally:
            process.kill()


def test_a_session_stays_with_its_pair_and_other_requests_go_to_the_less_loaded(address: Address) -> None:
    names = [*map(str, range(30))]
    assert address.ask("ana") == ANSWER
    # The address may know one pair before the other, and then has nowhere else to send anything.
    until(lambda: len({address.answered(name) for name in names}) == 2)
    before = address.answered("ana")
    assert [address.ask("ana") for _ in range(4)] == [ANSWER] * 4
    assert address.answered("ana") == before + 4
    other = next(name for name in names if address.answered(name) != before + 4)
    counts = address.answered("ana"), address.answered(other)
    # Ray does not know the queue of a pair that had no request for ten seconds, and asks in the background:
    # the first requests may all go to the other.
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: address.ask(), range(40))) == [ANSWER] * 40
    spread = address.answered("ana") - counts[0], address.answered(other) - counts[1]
    assert sum(spread) == 40
    assert min(spread) >= 8


def test_a_pair_that_is_killed_under_load_is_replaced_and_every_request_answered(address: Address) -> None:
    before = address.pairs()
    assert len(before) == 2
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(address.ask_until_answered) for _ in range(24)]
        until(lambda: any(answer.done() for answer in answers))
        os.kill(min(before), signal.SIGKILL)
        assert [answer.result() for answer in answers] == [ANSWER] * 24
    until(lambda: len(address.pairs()) == 2 and min(before) not in address.pairs())
    until(address.ready)
    assert address.ask("ana") == ANSWER
