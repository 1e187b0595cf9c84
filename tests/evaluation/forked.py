"""Starts the command again and again without paying for its imports: a process of its own for each start.

Each line on standard input is a JSON array: the arguments, and a file for what the command says. The answers
are the process id and, once it has ended, the exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import reason_spec.engines.factory
import reason_spec.engines.scripted
import reason_spec.evaluation.job
import reason_spec.evaluation.sources
import reason_spec.tasks.grading
import reason_spec.verifiers.exact  # noqa: F401
from reason_spec.cli.main import main


def run_command(arguments: list[str], log: str) -> None:
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["reason-spec", *arguments]
    try:
        main()
    except SystemExit as ending:
        sys.stdout.flush()
        os._exit(ending.code if isinstance(ending.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


for line in sys.stdin:
    arguments, log = json.loads(line)
    pid = os.fork()
    if pid == 0:
        run_command(arguments, str(Path(log)))
    answer(pid)
    answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
