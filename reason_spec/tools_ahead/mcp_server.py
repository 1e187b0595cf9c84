"""The process of an MCP server, which the proxy starts, and its lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from reason_spec.errors import ReasonSpecError

MAX_LINE: Final = 64 << 20
"""Bytes of a message."""
_GRACE: Final = 5.0
"""Seconds in which a server may end after its input has ended."""


class McpServer:
    """The server's process, and its lines."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self.is_ending = False

    async def start(self) -> None:
        """Start the process.

        Raises:
            ReasonSpecError: it cannot be started.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, limit=MAX_LINE
            )
        except OSError as error:
            raise ReasonSpecError(
                f"the MCP server {self._command[0]!r} cannot be started ({error.strerror or error})"
            ) from error

    async def read(self, take: Callable[[bytes], None]) -> str:
        """Read lines until there are no more; return why."""
        assert self._process is not None
        assert self._process.stdout is not None
        name = f"the MCP server {' '.join(self._command)!r}"
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                self._process.kill()
                # Reads what is left too, without which the pipe stays open.
                await self._process.communicate()
                return f"{name} sent a message of more than {MAX_LINE} bytes, and was ended; start it again"
            if not line:
                return f"{name} has ended with exit status {await self._process.wait()}; start it again"
            take(line)

    async def write(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # `read` sees the end too, and says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()

    async def end(self, reading: asyncio.Task[None]) -> None:
        """Close the input of the process, and end it if that does not.

        A child of the process may hold the output open; it is not waited for.
        """
        self.is_ending = True
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        for insist in (self._process.terminate, self._process.kill, reading.cancel):
            ended, _ = await asyncio.wait([reading], timeout=_GRACE)
            if ended:
                await reading
                return
            with contextlib.suppress(ProcessLookupError):
                insist()
        await asyncio.wait([reading])
        # Its destructor would close the pipes after the event loop, which fails.
        self._process._transport.close()  # type: ignore[attr-defined]
