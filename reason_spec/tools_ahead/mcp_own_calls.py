"""The calls that the proxy makes ahead of its client, and the server's answers to them."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from reason_spec.errors import ReasonSpecError
from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.mcp_messages import Message

_TRACING: Final = {"traceparent", "tracestate", "baggage"}
"""Fields of ``_meta`` that differ from call to call and name no user."""
_MOST_CANCELLED: Final = 1000


class OwnCalls:
    """Calls whose ids only the proxy knows."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        """Args:
        send: gives a message to the server, and returns at once.
        """
        self.meta: Message = {}
        """The ``_meta`` of each call."""
        self._send = send
        self._made: dict[str, Future[Message]] = {}
        self._cancelled: deque[str] = deque(maxlen=_MOST_CANCELLED)
        """Ids that the server was asked to cancel last, and has not answered: it may, or not."""
        # A proxy in front of a proxy has other ids.
        self._id = f"reason-spec/ahead/{secrets.token_hex(8)}"
        self._num_made = 0

    def set_meta(self, found: Any) -> bool:
        """Take the ``_meta`` of a call of the client; return whether it says something else than before."""
        meta = dict(found) if isinstance(found, dict) else {}
        meta.pop("progressToken", None)
        before, self.meta = self.meta, meta
        return any(before.get(name) != meta.get(name) for name in (before.keys() | meta.keys()) - _TRACING)

    def start(self, call: Call) -> Future[Message]:
        """Make a call. If its future is cancelled, the server is asked to cancel the call."""
        self._num_made += 1
        identity = f"{self._id}/{self._num_made}"
        future: Future[Message] = Future()
        self._made[identity] = future
        params: Message = {"name": call.name, "arguments": call.arguments}
        if self.meta:
            params["_meta"] = self.meta
        self._send({"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params})
        future.add_done_callback(partial(self._cancel, identity))
        return future

    def _cancel(self, identity: str, done: Future[Message]) -> None:
        if done.cancelled():
            self._made.pop(identity, None)
            self._cancelled.append(identity)
            params = {"requestId": identity, "reason": "the result is not needed any more"}
            self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def take(self, message: Message) -> bool:
        """Take a message of the server if it is the answer to one of these calls; return whether it is."""
        if "method" in message:
            return False
        identity = str(message.get("id"))
        if identity in self._cancelled:
            self._cancelled.remove(identity)
            return True
        future = self._made.pop(identity, None)
        if future is None:
            return False
        result = message.get("result")
        # A result of another type asks the client for something, and the client has not made this call yet.
        if (
            isinstance(result, dict)
            and result.get("resultType", "complete") == "complete"
            and not result.get("isError")
        ):
            future.set_result(result)
        else:
            future.set_exception(ReasonSpecError("the tool has failed"))
        return True

    def fail(self, reason: str) -> None:
        """The server has ended: the calls that are open fail."""
        made, self._made = self._made, {}
        for future in made.values():
            if not future.cancelled():
                future.set_exception(ReasonSpecError(reason))
