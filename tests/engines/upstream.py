"""A small completions server with the faults of large ones: it refuses, stalls, breaks off and dies.

What it writes is a function of the prompt, so that whatever way a generation took shows in its tokens.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Continuation = Callable[[Sequence[int]], Sequence[int]]
"""All tokens behind a prompt, to the end of the text."""


@dataclass
class Fault:
    """What goes wrong with one request, after ``after`` tokens of its stream."""

    kind: Literal["status", "break", "stall", "garbage", "error event", "odd ending"]
    after: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 5.0


class Upstream:
    """Serves ``continuation`` on a free port of this machine until it is closed.

    ``faults`` are met by one request each, in order; ``None`` is a request without one.
    """

    def __init__(
        self,
        continuation: Continuation,
        to_text: Callable[[Sequence[int]], str],
        to_tokens: Callable[[str], Sequence[int]],
        *,
        takes_tokens: bool = True,
        model: str = "served",
        max_model_len: int | None = 512,
        chunk: int = 1,
        key: str | None = None,
        seconds_per_chunk: float = 0.0,
    ) -> None:
        self.continuation = continuation
        self.to_text = to_text
        self.to_tokens = to_tokens
        self.takes_tokens = self.returns_tokens = takes_tokens
        self.model = model
        self.max_model_len = max_model_len
        self.chunk = chunk
        self.key = key
        self.seconds_per_chunk = seconds_per_chunk
        self.faults: list[Fault | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.num_live = 0
        self.most_live = 0
        self.num_hung_up = 0
        self.lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def streams(self) -> list[dict[str, Any]]:
        """The bodies of streamed requests; others are those of the start."""
        return [body for body in self.bodies if body.get("stream")]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(upstream: Upstream) -> Iterator[Upstream]:
    try:
        yield upstream
    finally:
        upstream.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    live = False

    @property
    def upstream(self) -> Upstream:
        return self.server.upstream

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._refuse_without_key():
            return
        model: dict[str, Any] = {"id": self.upstream.model, "object": "model"}
        if self.upstream.max_model_len is not None:
            model["max_model_len"] = self.upstream.max_model_len
        self._answer(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refuse_without_key():
            return
        if not self.path.endswith("/completions"):
            self._answer(404, {"error": {"message": "no such path"}})
            return
        with self.upstream.lock:
            self.upstream.bodies.append(body)
            streamed = body.get("stream", False)
            fault = self.upstream.faults.pop(0) if self.upstream.faults and streamed else None
            self.upstream.num_live += 1
            self.upstream.most_live = max(self.upstream.most_live, self.upstream.num_live)
        self.live = True
        try:
            self._complete(body, fault)
        except OSError:
            with self.upstream.lock:
                self.upstream.num_hung_up += 1
        finally:
            self._leave()

    def _leave(self) -> None:
        """Count the request as done, once: a client with the last token may send its next request."""
        with self.upstream.lock:
            self.upstream.num_live -= self.live
            self.live = False

    def _refuse_without_key(self) -> bool:
        wrong = (
            self.upstream.key is not None
            and self.headers.get("Authorization") != f"Bearer {self.upstream.key}"
        )
        if wrong:
            self._answer(401, {"error": {"message": "a key is needed"}})
        return wrong

    def _complete(self, body: dict[str, Any], fault: Fault | None) -> None:
        prompt = body["prompt"]
        if isinstance(prompt, list) and not self.upstream.takes_tokens:
            self._answer(400, {"error": {"message": "prompt must be a string"}})
            return
        if fault is not None and fault.kind == "status":
            self._answer(fault.status, {"error": {"message": "as was asked"}}, fault.headers)
            return
        tokens = list(prompt) if isinstance(prompt, list) else list(self.upstream.to_tokens(prompt))
        written = list(self.upstream.continuation(tokens))[: body["max_tokens"]]
        ended = "length" if len(written) == body["max_tokens"] else "stop"
        for index, token in enumerate(written):
            if token in body.get("stop_token_ids", ()):
                written, ended = written[: index + 1], "stop"
                break
        if not body.get("stream"):
            choice = self._choice(body, written, ended)
            if "prompt_logprobs" in body:
                choice["prompt_logprobs"] = [None, *map(self._prompt_row, tokens[1:])]
            choice["prompt_token_ids"] = tokens
            self._answer(200, {"choices": [choice]})
            return
        self._stream(body, written, ended, fault)

    @staticmethod
    def _prompt_row(token: int) -> dict[str, Any]:
        """A token of a prompt, and the one that is likeliest there, as vLLM returns them."""
        return {str(token): {"logprob": -token / 100}, str(token + 1): {"logprob": -0.01}}

    def _choice(self, body: dict[str, Any], tokens: Sequence[int], ended: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": self.upstream.to_text(tokens), "finish_reason": ended}
        if self.upstream.returns_tokens and body.get("return_token_ids"):
            choice["token_ids"] = list(tokens)
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(tokens)}
        return choice

    def _stream(self, body: dict[str, Any], written: Sequence[int], ended: str, fault: Fault | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._send(": alive\n\n")
        for start in range(0, max(1, len(written)), self.upstream.chunk):
            if fault is not None and start >= fault.after and self._fail(fault):
                return
            time.sleep(self.upstream.seconds_per_chunk)
            last = start + self.upstream.chunk >= len(written)
            if last and fault is not None and fault.kind == "odd ending":
                ended = "abort"
            choice = self._choice(body, written[start : start + self.upstream.chunk], ended if last else None)
            if last:
                self._leave()
            # vLLM, too, escapes nothing but what JSON has to.
            self._send(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n")
        self._send("data: [DONE]\n\n")

    def _fail(self, fault: Fault) -> bool:
        match fault.kind:
            case "stall":
                time.sleep(fault.seconds)
                return False
            case "garbage":
                self._send("data: {not json\n\n")
                return True
            case "error event":
                self._send('data: {"error": {"message": "the engine died", "code": 500}}\n\n')
                return True
            case "break":
                return True
        return False

    def _send(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
