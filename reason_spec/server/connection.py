"""Connections: their number, time limits of headers and unread responses, refusal of ambiguous framing."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from reason_spec.server.base import ApiError
from reason_spec.settings import ServerSettings

logger = logging.getLogger(__name__)

_HEADER_SECONDS = 10.0
"""Time for the headers of a request; for the first request from the start of the connection."""
_KEEP_ALIVE_SECONDS = 65
"""Longer than clients keep an idle connection: the client should close first."""
_LAST_SECONDS = 2
"""Time for connections to close after the last response."""
_REFUSED_SECONDS = 1.0
"""A refused connection stays open so long: closed at once, the client may see a reset instead."""
_REFUSED_AT_ONCE = 64
"""Refused connections that get a response; further ones are closed."""
_RETRY_SECONDS = 5
_UNREAD_SECONDS = 60.0
"""Between two looks at a closed connection; it is aborted if its client read nothing in this time."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")


def http_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """Return the configuration of uvicorn.

    There may be twice as many connections as requests that run or wait.
    """

    class Protocol(LimitedProtocol):
        max_connections = 2 * (settings.max_running_requests + settings.max_queued_requests)

    return uvicorn.Config(
        app,
        # It limits the headers of a request, which httptools does not.
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # No decision depends on an address, and a header must not change one.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )


class LimitedProtocol(H11Protocol):
    """A connection with time limits for headers and unread responses, and a cap on the number of connections.

    They apply before authentication, so the application is not involved.
    """

    max_connections: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn: _StrictConnection = _StrictConnection(h11.SERVER)
        self._is_new = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._abort_if_unread()
        beyond = len(self.connections) - self.max_connections
        if beyond > _REFUSED_AT_ONCE:
            transport.abort()
        elif beyond > 0:
            text = "the server has too many connections; retry in a moment"
            self._refuse(
                ApiError(
                    503,
                    text,
                    kind="server_error",
                    code="too_many_connections",
                    retry_after=_RETRY_SECONDS,
                )
            )
        else:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg))

    def _watch_head(self) -> None:
        """Limit the time of headers from their first byte, of the first request from the start."""
        is_idle = self.conn.their_state is h11.IDLE
        self._is_new = self._is_new and is_idle
        is_awaited = is_idle and (self._is_new or self.conn.has_part)
        if not is_awaited or self._is_refused or self.transport.is_closing():
            self._stop_watching()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_if_unread(self, num_before: int = 0) -> None:
        """Abort a closed connection if its client has read nothing since the last look.

        Otherwise it would stay until the rest of the response is sent: for ever, if the client never reads.
        """
        num_unread = self.transport.get_write_buffer_size() if self.transport.is_closing() else 0
        if num_unread and num_unread == num_before:
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(_UNREAD_SECONDS, self._abort_if_unread, num_unread)

    def _give_up(self) -> None:
        text = f"the headers did not arrive within {_HEADER_SECONDS:g} seconds"
        self._refuse(ApiError(408, text, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        logger.warning("a connection was refused: %s", error.message)
        self._stop_watching()
        self._unset_keepalive_if_required()
        self._is_refused = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # A response is being sent: there is no room for another one.
            self.transport.close()
            return
        response = error.response({"connection": "close"})
        head = h11.Response(
            status_code=error.status, headers=response.raw_headers, reason=STATUS_PHRASES[error.status]
        )
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        self.loop.call_later(_REFUSED_SECONDS, self.transport.close)


class _StrictConnection(h11.Connection):
    """Refuses header lines that do not end in CR LF: a proxy may not see their end."""

    @property
    def has_part(self) -> bool:
        """Whether bytes came that are not parsed yet."""
        return bool(self.trailing_data[0])

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            waiting = self.trailing_data[0]
            end = _END_OF_HEAD.search(waiting)
            head = waiting[: end.end()] if end else waiting
            if head.count(b"\n") != head.count(b"\r\n"):
                raise h11.RemoteProtocolError("a line of the headers ends without a carriage return")
        return super().next_event()
