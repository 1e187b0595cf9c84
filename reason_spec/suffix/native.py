"""Turns Python functions over arrays into machine code, and keeps the code for the next process."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_lock = threading.Lock()


def compiled(function: Function) -> Function:
    """Return ``function`` as machine code that runs without the interpreter's lock.

    The code is made at the first call, some seconds, and read back by later processes from
    ``code_folder()``; where that cannot be written, every process makes it anew.
    """
    return cast("Function", _compile(function, inline=False))


def inlined(function: Function) -> Function:
    """Return ``function`` as machine code to be called by other compiled functions only."""
    return cast("Function", _compile(function, inline=True))


def code_folder() -> Path:
    """Return where machine code is kept: the user's cache, never the package's own folder."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "reason-spec" / "numba"


def _compile(function: Callable[..., Any], inline: bool) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if inline:
        # Kept with the code of its callers.
        return numba.njit(function, **options)
    # numba reads the folder from its global configuration; other users of numba in this process, such as
    # vLLM, must not find theirs changed.
    with _lock:
        before = numba.config.CACHE_DIR
        folder = before or _writable_code_folder()
        if folder is None:
            # Asked to keep the code, numba would fall back to the package's own folder.
            return numba.njit(function, **options)
        try:
            numba.config.CACHE_DIR = folder
            return numba.njit(function, cache=True, **options)
        finally:
            numba.config.CACHE_DIR = before


def _writable_code_folder() -> str | None:
    folder = code_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None
