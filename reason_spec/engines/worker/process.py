"""Starts and ends a worker process, and exchanges messages with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reason_spec.engines.worker.channel import Channel
from reason_spec.engines.worker.messages import FromWorker, ToWorker

_LAST_OUTPUT_BYTES = 2000
_EXIT_SECONDS = 2.0
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from multiprocessing.connection import Connection; "
    "from reason_spec.engines.worker.main import main; "
    "main(Connection(int(sys.argv[2])), sys.argv[3])"
)
_OUT_OF_MEMORY = (
    " (the system may have run out of memory: a smaller cache_tokens takes less, and reason-spec doctor "
    "shows what each model needs)"
)


class Ending(NamedTuple):
    """How a worker ended: its exit status (negative: a signal) and the end of what it printed."""

    status: int
    last_output: str

    def describe(self) -> str:
        if self.status < 0:
            known = {known.value: known.name for known in signal.Signals}
            name = known.get(-self.status, f"signal {-self.status}")
            hint = _OUT_OF_MEMORY if self.status == -signal.SIGKILL else ""
            return f"it was ended by {name}{hint}"
        return f"it exited with status {self.status}" + (
            f", saying: {self.last_line}" if self.last_line else ""
        )

    @property
    def last_line(self) -> str:
        return "".join(self.last_output.strip().splitlines()[-1:])


class WorkerProcess:
    """A worker process, connected by a socket pair.

    It is not started by ``multiprocessing``, which runs the caller's main module again in the child: a script
    without the ``if __name__ == "__main__"`` guard would start itself for ever.

    Args:
        host: the module whose ``load`` makes the step loop.
        cores: the cores it binds itself to; its thread pools are sized for them.
        environment: further environment variables.
    """

    def __init__(
        self, host: str, cores: tuple[int, ...] | None, environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), str(theirs.fileno()), host],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                env=os.environ | _thread_environment(cores) | dict(environment or {}),
                # Ctrl-C in the terminal is for the main process alone.
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._outbox: list[ToWorker] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, message: ToWorker) -> None:
        """Send with the other messages of this turn of the event loop: each write wakes the worker.

        It does not block, and is ignored if the worker has ended.
        """
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if messages:
            self._channel.send(messages)

    def receive(self) -> Sequence[FromWorker] | None:
        """Return the messages received, None if the worker has ended; call it when the pipe is readable."""
        return self._channel.receive()

    def detach(self) -> None:
        """Leave the event loop; unsent messages are dropped."""
        self._outbox.clear()
        self._channel.detach()

    def kill(self) -> None:
        """Kill it with its children, even if it is stopped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> Ending:
        """Close the pipe, and kill the process if it does not end."""
        self._channel.close()
        try:
            status = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        # Its children may hold the model's memory.
        self.kill()
        with self._output as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _LAST_OUTPUT_BYTES))
            return Ending(status, output.read().decode(errors="replace"))


def _thread_environment(cores: tuple[int, ...] | None) -> dict[str, str]:
    """Return the variables that thread pools read when torch is imported; those of the user stand.

    The threads of a pass wait for each other some hundred times. Asleep, they take a third of the pass to
    wake up (SmolLM2-135M on two threads: 31 ms, without sleep 20 ms); if they spin without end, they take the
    core of the other engine. So they spin for about 0.1 ms (GNU) or 1 ms (LLVM, Intel), and then sleep.
    """
    defaults = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {name: os.environ.get(name, value) for name, value in defaults.items()}
    if cores is not None:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(len(cores)))
    return environment
