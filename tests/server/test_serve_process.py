"""``reason-spec serve`` from its start to its end, as an operator and its clients see it."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest

from reason_spec.pair import SAMPLE_PATH
from reason_spec.server.keys import add_key
from reason_spec.suffix.store import tenants_of
from tests.cli_runner import fail, succeed
from tests.engines.test_pruned import write_draft
from tests.engines.tiny_models import save_model
from tests.server.processes import (
    CHAT,
    PATIENCE_SECONDS,
    ServeProcess,
    bearer,
    refused,
    scripted,
    serving,
    until,
)

WORDS = "one two three four five six seven eight nine ten eleven twelve"
QUESTION = json.loads(SAMPLE_PATH.read_text().splitlines()[0])["question"]
SECRET = "a question that is nobody's business"


def test_it_says_where_it_is_answers_and_ends_with_success(tmp_path: Path) -> None:
    with serving(*scripted(tmp_path, WORDS), cwd=tmp_path) as server:
        assert server.example.startswith(f"curl {server.url}/v1/chat/completions")
        assert [server.status(path) for path in ("/health", "/ready", "/version", "/v1/models")] == [200] * 4
        answer = server.ask(SECRET)
        assert answer.json()["choices"][0]["message"]["content"] == WORDS
        assert answer.json()["reason_spec"]["strategy"] == "autoregressive"
        assert 'vllm:generation_tokens_total{model_name="says"}' in server.http.get("/metrics").text
        paths = server.http.get("/openapi.json").json()["paths"]
        assert {"/health", "/ready", "/version", "/metrics", CHAT} <= paths.keys()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        (line,) = [line for line in server.log() if line.get("path") == CHAT]
        assert (line["status"], line["tenant"]) == (200, "default")
        assert line["request_id"] == answer.headers["x-request-id"]
        assert SECRET not in json.dumps(server.log())


def test_what_is_under_way_is_answered_to_its_end_before_it_stops(tmp_path: Path) -> None:
    words = WORDS * 4
    with serving(*scripted(tmp_path, words, seconds_per_pass=0.05), cwd=tmp_path) as server:
        body = server.body("?", stream=True)
        with server.http.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            assert response.status_code == 200
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.status("/ready") == 503)
            late = server.ask("?")
            assert (late.status_code, "retry-after" in late.headers) == (503, True)
            assert server.status("/health") == 200
            text = text_of([first, *lines])
        assert text == words
        assert server.end() == 0


def test_what_takes_longer_than_the_drain_gets_an_error(tmp_path: Path) -> None:
    slow = scripted(tmp_path, WORDS * 50, seconds_per_pass=0.05)
    with serving(*slow, "--set", "server.drain_seconds=0.1", cwd=tmp_path) as server:
        body = server.body("?", stream=True)
        with server.http.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "server_stopped"
        assert server.end() == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with serving(*scripted(tmp_path, WORDS * 50, seconds_per_pass=0.1), cwd=tmp_path) as server:
        body = server.body("?", stream=True)
        with server.http.stream("POST", CHAT, json=body) as response:
            next(response.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.status("/ready") == 503)
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == -signal.SIGTERM


def text_of(lines: list[str]) -> str:
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_a_port_in_use_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port, *scripted(tmp_path, WORDS), cwd=tmp_path)
    assert f"port {port} of 127.0.0.1 is in use; take another with --port" in said


def test_others_are_not_let_in_without_a_key(tmp_path: Path) -> None:
    said = refused("--host", "0.0.0.0", "--port", "0", *scripted(tmp_path, WORDS), cwd=tmp_path)
    assert "reason-spec keys new TENANT" in said
    assert "there is no such file" in refused("--api-keys", "absent.yaml", "--port", "0", cwd=tmp_path)
    short = refused("--port", "0", cwd=tmp_path, REASON_SPEC_API_KEY="short")
    assert "16 or more" in short


def test_keys_come_and_go_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.yaml"
    ana = add_key(keys, "ana")
    options = ["--api-keys", str(keys), *scripted(tmp_path, WORDS)]
    with serving(*options, cwd=tmp_path, REASON_SPEC_API_KEY="an operator's own key") as server:
        assert server.ask("?").status_code == 401
        assert "reason_spec" not in server.ask("?", ana).json()
        assert "reason_spec" in server.ask("?", "an operator's own key").json()
        monkeypatch.setenv("REASON_SPEC_API_KEY", ana)
        assert "key of a trusted client" in fail("top", "--url", server.url, "--once")
        monkeypatch.setenv("REASON_SPEC_API_KEY", "an operator's own key")
        assert "says: 0 running" in succeed("top", "--url", server.url, "--once").stdout
        keys.unlink()
        ben = add_key(keys, "ben")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.ask("?", ben).status_code == 200)
        assert server.ask("?", ana).status_code == 401
        keys.write_text("damaged")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("keys stay as they were" in line["message"] for line in server.log()))
        assert server.ask("?", ben).status_code == 200
        assert not [key for key in (ana, ben) if key in json.dumps(server.log())]


def test_the_keys_of_a_file_are_read_from_the_settings_file_too(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.yaml", "ana")
    assert stat.S_IMODE((tmp_path / "keys.yaml").stat().st_mode) == 0o600
    (tmp_path / "settings.yaml").write_text("server: {api_keys_file: keys.yaml, port: 0}")
    options = ["--config", "settings.yaml", *scripted(tmp_path, WORDS)]
    with serving(*options, cwd=tmp_path) as server:
        assert server.ask("?").status_code == 401


STORY = "Ana counts.\n\nTwo boxes hold four pens each.\n\nSo there must be eight.\n\nNobody took any away."


def scripted_pair(folder: Path) -> list[str]:
    """Return options of a target whose steps the draft never guesses."""
    options = []
    for role, text in (("target", STORY), ("draft", "I know nothing.\n\nNot at all.")):
        script = folder / f"{role}.json"
        script.write_text(json.dumps({"answers": {QUESTION: text}}))
        options += [f"--{role}", str(script), "--set", f"{role}.kind=scripted"]
    return options


def test_what_one_tenant_was_answered_is_proposed_to_no_other(tmp_path: Path) -> None:
    options, keys = tenants(tmp_path)
    with serving(*scripted_pair(tmp_path), *options, cwd=tmp_path) as server:
        _, warm, other = check_tenants(server, keys)
        assert passes(warm) < passes(other) * 0.8
        metrics = server.http.get("/metrics", headers=bearer(keys["ana"])).text
        assert 'reason_spec:steps_total{model_name="says",origin="cache"}' in metrics


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_kill_loses_little_and_the_death_of_a_worker_is_seen(tmp_path: Path) -> None:
    options, keys = tenants(tmp_path)
    cache = tmp_path / "cache"
    options += ["--cache", str(cache), "--max-tokens", "96", "--set", "server.save_seconds=0.2"]
    with serving(*options, cwd=tmp_path) as server:
        cold, warm, other = check_tenants(server, keys)
        # How many passes the target takes depends on when the drafted steps arrive.
        assert passes(warm, "draft") < passes(other, "draft") * 0.8
        until(lambda: cache.exists() and set(keys) <= set(tenants_of(cache)))
        server.process.kill()
        assert server.end() == -signal.SIGKILL
    with serving(*options, cwd=tmp_path) as server:
        again = usage_of(server, keys["ana"])
        assert again["steps"]["cache"] > 0
        assert passes(again, "draft") < passes(cold, "draft") * 0.8
        psutil.Process(server.process.pid).children()[0].kill()
        until(lambda: server.status("/health") == 503)
        assert server.status("/ready") == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def tenants(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return options of a server with two tenants, and their keys."""
    file = folder / "keys.yaml"
    keys = {name: add_key(file, name, trusted=True) for name in ("ana", "ben")}
    options = ["--api-keys", str(file), "--verifier", "exact", "--set", "strategy.planner=false"]
    return options, keys


def check_tenants(server: ServeProcess, keys: dict[str, str]) -> list[dict[str, Any]]:
    """Ask the same as one tenant, again, and as another; return what speculation did for each."""
    cold, warm, other = reports = [usage_of(server, keys[name]) for name in ("ana", "ana", "ben")]
    assert warm["steps"]["cache"] > 0
    assert "cache" not in cold["steps"]
    # The same question, and nothing of what the other tenant was answered.
    assert "cache" not in other["steps"]
    return reports


def usage_of(server: ServeProcess, key: str) -> dict[str, Any]:
    """Ask, and return what speculation did."""
    answer = server.ask(QUESTION, key)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["reason_spec"])


def passes(report: dict[str, Any], engine: str = "target") -> int:
    return int(report["tokens"][engine]["passes"])


def test_a_client_that_never_sends_its_body_holds_nobody_up(tmp_path: Path) -> None:
    options = [*scripted(tmp_path, WORDS), "--set", "server.body_timeout=0.2"]
    with serving(*options, cwd=tmp_path) as server:
        host, port = server.url.removeprefix("http://").split(":")
        kind = "Content-Type: application/json"
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: 100\r\n\r\n{{"
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(head.encode())
            assert server.ask("?").status_code == 200
            slow.settimeout(PATIENCE_SECONDS)
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        large = server.http.post(CHAT, content=b" " * (6 << 20), headers={"Content-Type": "application/json"})
        assert large.status_code == 413
        with socket.create_connection((host, int(port))) as bare:
            bare.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n")
            bare.settimeout(PATIENCE_SECONDS)
            assert bare.recv(100).startswith(b"HTTP/1.1 400")


def test_it_keeps_answers_for_its_draft_only_where_it_is_asked_to(tmp_path: Path) -> None:
    target = save_model("llama", tmp_path / "target")
    draft = write_draft(target, tmp_path / "draft", {})
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = ["--target", str(target), "--draft", str(draft), "--set", "load_control.use='off'"]
    learning = ["--set", f"server.learn_folder={tmp_path / 'answers'}"]
    said = refused("--port", "0", *options, *learning, cwd=tmp_path, **cache)
    assert "server.learn_folder is set" in said
    assert "Use --strategy speculative" in said
    speculative = [*options, "--strategy", "speculative"]
    with serving(*speculative, *learning, cwd=tmp_path, **cache) as server:
        assert server.ask("?", max_tokens=8).status_code == 200
        shown = server.http.get("/metrics").text
        assert 'reason_spec:draft_version{model_name="says"} 0.0' in shown
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    (stored,) = sqlite3.connect(tmp_path / "answers" / "answers.sqlite").execute("SELECT answer FROM answers")
    assert len(stored[0]) == 4 * 8
