"""Commands in a terminal: errors as one line, interrupts, closed or full outputs."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperGroup

from reason_spec.errors import ReasonSpecError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_INTERRUPTED = 130
EXIT_OUTPUT_FAILED = 1
_SHOW_CURSOR = b"\x1b[?25h"
_OUTPUT_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_T = TypeVar("_T")


class CommandGroup(TyperGroup):
    """Prints errors of the user and the environment as one line; bugs keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ReasonSpecError as error:
            print_error(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            error_console().print("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def print_error(text: str) -> None:
    error_console().print(f"error: {text}", style="red", soft_wrap=True, highlight=False, markup=False)


def run_app(app: typer.Typer) -> None:
    """Run the command line; its output may be a full disk or a terminal without UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer with a question mark beats none
    try:
        app()
    except OSError as error:
        # Files of ours report their own failures by name, so this one is about a stream.
        if error.filename is not None or error.errno not in _OUTPUT_FAILURES:
            raise
        _discard(sys.stdout)
        print_error(f"the output cannot be written ({error.strerror})")
        sys.exit(EXIT_OUTPUT_FAILED)


def _discard(stream: Any) -> None:
    """Point a stream to the null device, so that flushing it at the exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run_interruptible(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as ``asyncio.run`` does; the first interrupt cancels it, the second ends the process.

    The clean-up may have to wait for a model that is loading. A second interrupt loses nothing: results are
    on disk, and the workers end with this process.

    Raises:
        KeyboardInterrupt: there was an interrupt.
    """
    task: asyncio.Task[Any] | None = None

    async def run() -> _T:
        nonlocal task
        task = asyncio.current_task()
        return await work

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        # The system itself acts on the next one: Python would first wait for an import to let go.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _write_error(b"\nStopping; Ctrl-C again leaves at once.\n")
        if task is not None and not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def _write_error(text: bytes) -> None:
    """Write to standard error from a signal handler, where a stream's own buffer may be in use."""
    if os.isatty(2):
        text = _SHOW_CURSOR + text
    os.write(2, text)


@contextmanager
def waiting(text: str, quiet: bool) -> Iterator[None]:
    """Show a status line on a terminal."""
    console = error_console()
    with nullcontext() if quiet or not console.is_terminal else console.status(text):
        yield
