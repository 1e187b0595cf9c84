"""Converted models in the user's cache folder: written once by a child process, whole or not at all."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from reason_spec.engines.digests import digest_file, digest_model
from reason_spec.errors import EngineError

logger = logging.getLogger(__name__)

ReportProgress = Callable[[int, int], None]
"""Called with the numbers of converted tensors and of all tensors."""


def model_folder(key: str) -> Path:
    """Return the folder of a converted model, which may not exist yet."""
    return platformdirs.user_cache_path("reason-spec") / "models" / key


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion under way.

    Attributes:
        scratch: a folder for temporary files.
        output: the folder that the conversion creates.
    """

    scratch: Path
    _shown: str
    _failure: str
    _hint: str
    _report: ReportProgress

    @property
    def output(self) -> Path:
        return self.scratch / "model"

    def run(self, module: str, *arguments: Path) -> None:
        """Run a module as a program, so that torch and its memory are freed.

        It prints the numbers of converted tensors and of all tensors, a line each time.

        Raises:
            EngineError: it failed.
            KeyboardInterrupt: it was interrupted.
        """
        command = [sys.executable, "-m", module, *map(str, arguments)]
        # Errors go to a file: a second pipe could fill up while the first is read.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    done, _, total = line.partition(" ")
                    if done.isdigit() and total.strip().isdigit():
                        self._report(int(done), int(total))
                child.wait()
            finally:
                child.kill()
                child.wait()
            output.seek(0)
            errors = output.read()
        if child.returncode == -signal.SIGINT or (child.returncode and "KeyboardInterrupt" in errors):
            # Ctrl-C reaches all processes of the terminal, the child perhaps while it starts.
            raise KeyboardInterrupt
        if child.returncode:
            reasons = [line.strip() for line in errors.splitlines() if line.strip()]
            reason = reasons[-1] if reasons else f"the conversion ended with code {child.returncode}"
            raise EngineError(f"model {self._shown!r} {self._failure}: {reason}. {self._hint}")


def cached_model(
    key: str,
    shown: str,
    convert: Callable[[Conversion], None],
    *,
    doing: str,
    failure: str,
    hint: str,
) -> Path:
    """Return the folder of a converted model; concurrent callers wait for the first one to write it.

    Args:
        key: names the folder, and changes with the content.
        shown: the name of the model in messages.
        convert: creates the output folder.
        doing: the title of the progress bar, such as ``Dequantizing``.
        failure: what an error says of the model, such as ``could not be converted``.
        hint: how an error ends.

    Raises:
        EngineError: the conversion failed, or the cache folder cannot be written.
    """
    folder = model_folder(key)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if folder.is_dir():
                return folder
            unfinished = folder.with_name(folder.name + ".part")
            # What is left of an interrupted attempt.
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                with _progress(f"{doing} {shown}", folder) as report:
                    conversion = Conversion(unfinished, shown, failure, hint, report)
                    convert(conversion)
                conversion.output.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise EngineError(
            f"model {shown!r} cannot be kept in {str(folder.parent)!r}: {error.strerror or error}; "
            "make room there, or name another cache folder in the variable XDG_CACHE_HOME"
        ) from None
    return folder


def joined_with_base(
    part: Path, files: Sequence[str], base: Path, module: str, *, layout: int, doing: str, failure: str
) -> Path:
    """Return the folder of a model that consists of a base model and a part: an adapter, or a draft's layers.

    Args:
        part: folder of the part.
        files: what it consists of.
        base: folder of the base model, with safetensors.
        module: the program, called with the folders of base, part and result.
        layout: version of the result; raise it when the program writes other files.
        doing: see `cached_model`.
        failure: see `cached_model`.

    Raises:
        EngineError: the part does not fit the base model, or a file cannot be read.
    """
    try:
        digests = [*(digest_file(part / name) for name in files), digest_model(base)]
    except OSError as error:
        raise EngineError(f"{str(error.filename)!r} cannot be read: {error.strerror}") from None
    return cached_model(
        "-".join((part.resolve().name, *(digest[:12] for digest in digests), f"v{layout}")),
        str(part),
        lambda conversion: conversion.run(module, base, part, conversion.output),
        doing=doing,
        failure=failure,
        hint="It belongs to another base model, or one of their files is damaged",
    )


@contextmanager
def _progress(title: str, folder: Path) -> Iterator[ReportProgress]:
    console = Console(stderr=True)
    if not console.is_terminal:
        logger.info("%s into %s", title.lower(), folder)
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(f"{title}, once", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
