"""Compiles Python functions over arrays to machine code with numba, and caches the code on disk."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs

Function = TypeVar("Function", bound=Callable[..., Any])

_lock = threading.Lock()


def compiled(function: Function) -> Function:
    """Return ``function`` as machine code that runs without the interpreter's lock.

    The first call compiles it, which takes seconds. Later processes load the code from ``code_folder()``; if
    that cannot be written, every process compiles again.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    # numba reads the folder from its global configuration, which other users of numba in this process, such
    # as vLLM, must find unchanged.
    with _lock:
        before = numba.config.CACHE_DIR
        folder = _writable_code_folder()
        if folder is None:
            # With cache=True numba would fall back to the package's own folder.
            return cast("Function", numba.njit(function, **options))
        try:
            numba.config.CACHE_DIR = folder
            return cast("Function", numba.njit(function, cache=True, **options))
        finally:
            numba.config.CACHE_DIR = before


def inlined(function: Function) -> Function:
    """Return ``function`` as machine code for calls from compiled functions, which are cached with it."""
    return cast("Function", numba.njit(function, nogil=True, error_model="numpy"))


def code_folder() -> Path:
    """Return the folder of the machine code: in numba's own, if one is set, else in the user's cache.

    Each version of the kernels has a folder of its own: numba checks only the file of a cached function for
    changes, not the files of the functions that it calls.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(__file__).parent.glob("*_kernels.py")):
        digest.update(file.read_bytes())
    folder = numba.config.CACHE_DIR or platformdirs.user_cache_path("reason-spec") / "numba"
    return Path(folder) / digest.hexdigest()


def _writable_code_folder() -> str | None:
    folder = code_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None
