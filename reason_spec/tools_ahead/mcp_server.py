"""The process of an MCP server, which the proxy starts, and its lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from reason_spec.errors import ReasonSpecError

MAX_LINE: Final = 64 << 20
"""Bytes of a message."""
_GRACE: Final = 5.0
"""Seconds in which a server may end after its input has ended."""
_SHORT_GRACE: Final = 0.5
"""The same where the proxy itself has to end: MCP clients kill what does not within two seconds."""


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
            # One that it did not write to the end must not run into the next message.
            take(line if line.endswith(b"\n") else line + b"\n")

    async def write(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # `read` sees the end too, and says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()

    async def end(self, reading: asyncio.Task[None]) -> None:
        """Close the input of the process; if that does not end it, end it and its children.

        A process that it has left behind may hold the output open, and is not waited for. There is less time
        where the task is cancelled, before or meanwhile.
        """
        self.is_ending = True
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        if await _has_ended(reading):
            return
        # Once the process is gone its children cannot be found.
        processes = self._processes()
        for insist in (psutil.Process.terminate, psutil.Process.kill):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    insist(process)
            if await _has_ended(reading):
                return
        reading.cancel()
        await asyncio.wait([reading])
        # Its destructor would close the pipes after the event loop, which fails.
        self._process._transport.close()  # type: ignore[attr-defined]

    def _processes(self) -> list[psutil.Process]:
        """Return the process and those that it started; none where it has ended."""
        assert self._process is not None
        if self._process.returncode is not None:
            # Another process may have its number.
            return []
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        return []


async def _has_ended(reading: asyncio.Task[None]) -> bool:
    """Wait for the end of the output; return whether it was reached."""
    task = asyncio.current_task()
    seconds = _SHORT_GRACE if task is not None and task.cancelling() else _GRACE
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([reading], timeout=seconds)
    if reading.done():
        await reading
    return reading.done()
