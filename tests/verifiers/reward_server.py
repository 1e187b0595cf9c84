"""A small pooling server in vLLM's forms, with the faults of large ones: it refuses, stalls and lies."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Rate = Callable[[str], float]
"""From the last turn of a conversation to its reward."""


class Fault(NamedTuple):
    """What one request meets: a status, or an answer of its own, after so many seconds."""

    status: int = 200
    answer: Any = None
    headers: dict[str, str] = {}
    seconds: float = 0.0
    breaks_off: bool = False


class RewardServer:
    """Serves ``rate`` on a free port until it is closed.

    Requests for rewards meet ``faults`` one by one, in order, and ``always`` where there are no more. The
    first ``num_probes`` of them, which are those of the start, meet none.
    """

    def __init__(
        self, rate: Rate, *, models: tuple[str, ...] = ("prm",), key: str | None = None, num_outputs: int = 2
    ) -> None:
        self.rate = rate
        self.models = models
        self.key = key
        self.num_outputs = num_outputs
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.num_probes = 1
        self.seconds = 0.0
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.most_live = 0
        self.num_live = 0
        self.lock = threading.Lock()
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def outputs(self, text: str) -> list[float]:
        reward = self.rate(text)
        return [reward] if self.num_outputs == 1 else [1 - reward, reward]

    def next_fault(self) -> Fault | None:
        if self.num_probes > 0:
            self.num_probes -= 1
            return None
        return self.faults.pop(0) if self.faults else self.always


@contextlib.contextmanager
def rewarding(rate: Rate = lambda text: 0.5, **options: Any) -> Iterator[RewardServer]:
    server = RewardServer(rate, **options)
    try:
        yield server
    finally:
        server.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: RewardServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._has_key():
            self._send(200, {"data": [{"id": model} for model in self.server.owner.models]})

    def do_POST(self) -> None:
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._has_key():
            return
        if self.path == "/tokenize":
            self._send(200, {"tokens": [7] if body["prompt"] == "<extra_0>" else [1, 2]})
            return
        with owner.lock:
            owner.bodies.append((self.path, body))
            fault = owner.next_fault() or Fault()
            owner.num_live += 1
            owner.most_live = max(owner.most_live, owner.num_live)
        time.sleep(fault.seconds or owner.seconds)
        with owner.lock:
            owner.num_live -= 1
        if fault.breaks_off:
            self.close_connection = True
            return
        answer = fault.answer
        if answer is None:
            answer = {"error": {"message": "as was asked"}} if fault.status >= 400 else self._rated(body)
        with contextlib.suppress(OSError):
            self._send(fault.status, answer, fault.headers)

    def _rated(self, body: dict[str, Any]) -> Any:
        owner = self.server.owner
        text = body["messages"][-1]["content"]
        if self.path == "/classify":
            return {"data": [{"index": 0, "probs": owner.outputs(text)}]}
        assert self.path == "/pooling", self.path
        steps = text.split("<extra_0>")[:-1]
        rows = [owner.outputs("<extra_0>".join(steps[: end + 1])) for end in range(len(steps))]
        return {"data": [{"index": 0, "data": rows}]}

    def _has_key(self) -> bool:
        key, given = self.server.owner.key, self.headers.get("Authorization", "")
        if key is not None and given != f"Bearer {key}":
            self._send(401, {"error": {"message": f"no such key: {given.removeprefix('Bearer ')}"}})
            return False
        return True

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
