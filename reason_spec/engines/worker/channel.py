"""The main process's end of the pipe to a worker. It never blocks."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any

_CHUNK_BYTES = 1 << 18
_LONGEST_SHORT = 0x7FFFFFFF
_HEADER, _LONG_HEADER = struct.Struct("!i"), struct.Struct("!Q")


class Channel:
    """A socket whose other end is a `multiprocessing.connection.Connection`, with the same frames.

    A stopped worker does not read, and may stop within a message. Unsent bytes and incomplete messages are
    buffered here; a blocking pipe would stop the event loop too.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._unsent = bytearray()
        self._received = bytearray()
        self._waits_to_write = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; ``detach`` it from the event loop first."""
        self._socket.close()

    def detach(self) -> None:
        """Leave the event loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.fileno())
        loop.remove_writer(self.fileno())

    def send(self, message: Any) -> None:
        """Send without blocking; ignored if the worker has ended."""
        body = pickle.dumps(message)
        if len(body) > _LONGEST_SHORT:
            self._unsent += _HEADER.pack(-1) + _LONG_HEADER.pack(len(body))
        else:
            self._unsent += _HEADER.pack(len(body))
        self._unsent += body
        if not self._waits_to_write:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The worker has ended; the reader notices.
            self._unsent.clear()
        waits = bool(self._unsent)
        if waits != self._waits_to_write:
            self._waits_to_write = waits
            loop = asyncio.get_running_loop()
            if waits:
                loop.add_writer(self.fileno(), self._write)
            else:
                loop.remove_writer(self.fileno())

    def receive(self) -> list[Any] | None:
        """Return the complete messages received; None if the worker has ended."""
        try:
            new = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not new:
            return None
        self._received += new
        messages = []
        while (body := self._take_frame()) is not None:
            messages.append(pickle.loads(body))
        return messages

    def _take_frame(self) -> bytes | None:
        received, start = self._received, _HEADER.size
        if len(received) < start:
            return None
        (size,) = _HEADER.unpack_from(received)
        if size == -1:
            start += _LONG_HEADER.size
            if len(received) < start:
                return None
            (size,) = _LONG_HEADER.unpack_from(received, _HEADER.size)
        if len(received) < start + size:
            return None
        body = bytes(received[start : start + size])
        del received[: start + size]
        return body
