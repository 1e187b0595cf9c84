"""``reason-spec serve`` as a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
CHAT = "/v1/chat/completions"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from reason_spec.cli.main import main; main()", *arguments]


def environment(**more: str) -> dict[str, str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith("REASON_SPEC_")}
    return {**names, "PYTHONPATH": str(ROOT), **more}


def refused(*arguments: str, cwd: Path, **more: str) -> str:
    """Run a server that must not start; return what it says."""
    done = subprocess.run(
        command("serve", *arguments), cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def until(what: Callable[[], bool]) -> None:
    """Wait for another process to do something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, f"nothing came of it in {PATIENCE_SECONDS:g} seconds"
        time.sleep(0.01)


class ServeProcess:
    """A server that takes requests."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"served at (\S+)/v1;", first)
        assert found, f"{first}\n{log.read_text()}"
        self.process = process
        self.example = process.stdout.readline().strip()
        self.url = found[1]
        self._log = log
        self.http = httpx2.Client(base_url=self.url, timeout=PATIENCE_SECONDS)

    def ask(self, question: str, key: str | None = None, **body: Any) -> httpx2.Response:
        return self.http.post(CHAT, json=self.body(question, **body), headers=bearer(key))

    def body(self, question: str, **body: Any) -> dict[str, Any]:
        return {"model": "says", "messages": [{"role": "user", "content": question}], **body}

    def status(self, path: str) -> int:
        return self.http.get(path).status_code

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def end(self) -> int:
        """Wait for the process to end; return its exit code."""
        return self.process.wait(PATIENCE_SECONDS)


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@contextmanager
def serving(*arguments: str, cwd: Path, **more: str) -> Iterator[ServeProcess]:
    """Start a server on a free port; where the block ends it is killed, if it still runs."""
    log = cwd / "log.jsonl"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command("serve", "--port", "0", "--set", "server.served_models=says", *arguments), cwd=cwd,
            env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield ServeProcess(process, log)
    finally:
        process.kill()
        process.communicate()


def scripted(folder: Path, answer: str, seconds_per_pass: float = 0.0) -> list[str]:
    """Return options of a target that always says the same, slowly."""
    script = folder / "says.json"
    values = {"answers": {}, "otherwise": answer, "seconds_per_pass": seconds_per_pass}
    script.write_text(json.dumps(values))
    options = ["--target", str(script), "--strategy", "autoregressive"]
    return [*options, "--set", "target.kind=scripted", "--set", "suffix.use=none"]
