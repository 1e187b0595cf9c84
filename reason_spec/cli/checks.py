"""Checks of the installation for ``doctor``.

A check only reads. One that raises is reported as a failed check, so that the other checks still run.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from reason_spec.cli.requirements import declared_requirements, install_line, requirement_problem
from reason_spec.engines.machine import read_words
from reason_spec.errors import ReasonSpecError
from reason_spec.pair import embedded_path

if TYPE_CHECKING:
    from reason_spec.verifiers.encoder import Embedding

Status: TypeAlias = Literal["ok", "warn", "fail"]
"""``warn``: it runs, but slower or with a part missing. ``fail``: the main job cannot run."""

MIN_PYTHON = (3, 11)
GIB = 2**30
# Two workers and the command itself load torch (about 0.4 GiB each); the embedded models are small.
MEMORY_NEEDED_BYTES = 1 * GIB
MEMORY_WANTED_BYTES = 3 * GIB
DISK_WANTED_BYTES = 256 * 2**20

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Each of these ties the threads of every process to the same cores.
PINNING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``remedy`` is empty if nothing needs to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


# Packages ------------------------------------------------------------------------------------


def check_python(version: tuple[int, ...]) -> Check:
    """Compare the interpreter with the oldest supported one."""
    text = ".".join(map(str, version))
    found = f"{platform.python_implementation()} {text} at {sys.executable}"
    if version < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        return Check("python", "fail", found, f"Install Python {wanted} or newer and run `make install`.")
    return Check("python", "ok", found)


def check_packages() -> Check:
    """Compare every required package with the range this distribution declares for it."""
    requirements = declared_requirements()
    if requirements is None:
        return Check(
            "packages", "warn", "reason-spec runs from its source folder, uninstalled", "Run `make install`."
        )
    wrong = [problem for problem in map(requirement_problem, requirements.base) if problem]
    if wrong:
        return Check("packages", "fail", "; ".join(wrong), f"Run: {install_line()}")
    return Check("packages", "ok", f"{len(requirements.base)} required packages in their tested ranges")


def check_extras() -> list[Check]:
    """Report for each optional part whether it is installed, with the line that installs it."""
    requirements = declared_requirements()
    if requirements is None:
        return []
    checks = []
    for extra, needed in sorted(requirements.extras.items()):
        name = f"optional: {extra}"
        missing = [problem for problem in map(requirement_problem, needed) if problem]
        if not missing:
            checks.append(Check(name, "ok", "installed"))
        elif len(missing) == len(needed):
            checks.append(Check(name, "ok", f"not installed; to add it: {install_line(extra)}"))
        else:
            checks.append(Check(name, "warn", "; ".join(missing), f"Run: {install_line(extra)}"))
    return checks


# Torch and the libraries on top of it --------------------------------------------------------


def check_torch() -> Check:
    """Import torch and name the device it would run on."""
    try:
        import torch
    except (ImportError, OSError, ValueError) as error:
        return Check(
            "torch",
            "fail",
            f"cannot be imported: {_first_line(error)}",
            "Remove the environment and run `make install`: a CUDA build does not load without its packages.",
        )
    version = torch.__version__
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        return Check(
            "torch", "ok", f"{version}, {count} x {device.name} of {device.total_memory / GIB:.0f} GiB"
        )
    if torch.backends.mps.is_available():
        return Check("torch", "ok", f"{version}, Apple GPU (mps)")
    if torch.version.cuda is not None and shutil.which("nvidia-smi"):
        return Check(
            "torch",
            "warn",
            f"{version}, which cannot use the GPU of this machine",
            f"Install a driver for CUDA {torch.version.cuda}, or a torch built for the installed driver.",
        )
    return Check("torch", "ok", f"{version}, CPU")


def check_torchvision() -> Check:
    """Import torchvision, where it is installed, in a process of its own.

    transformers imports it if it is there. Built for another torch, it takes the model classes
    down with it, although nothing here needs it.
    """
    if importlib.util.find_spec("torchvision") is None:
        return Check("torchvision", "ok", "not installed, not needed")
    version = importlib.metadata.version("torchvision")
    result = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return Check("torchvision", "ok", f"{version}, loads, not needed")
    reason = result.stderr.strip().splitlines()[-1:] or ["no message"]
    return Check(
        "torchvision",
        "fail",
        f"{version} does not load beside this torch: {reason[0]}",
        "Nothing here needs it. Run: pip uninstall -y torchvision torchaudio torchcodec",
    )


def check_transformers() -> Check:
    """Import the model class of the demonstration pair."""
    import transformers
    from transformers import Qwen3ForCausalLM

    return Check("transformers", "ok", f"{transformers.__version__}, {Qwen3ForCausalLM.__name__} loads")


# Cores, threads, memory ----------------------------------------------------------------------


class Cores(NamedTuple):
    """Logical cores of the machine, of this process's affinity, and of its CPU quota (None: no quota)."""

    machine: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        limit = self.affinity if self.quota is None else min(self.affinity, int(self.quota))
        return max(1, limit)


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Cores:
    """Count the cores this process may use; a container's quota is not seen in its affinity."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return Cores(machine, affinity, cpu_quota(cgroup))


def cpu_quota(cgroup: Path) -> float | None:
    """Read the CPU quota in cores from control groups of version 2 or 1; None where there is none."""
    with_v2 = read_words(cgroup / "cpu.max")
    if len(with_v2) == 2:
        quota, period = with_v2
    else:
        quota = "".join(read_words(cgroup / "cpu" / "cpu.cfs_quota_us"))
        period = "".join(read_words(cgroup / "cpu" / "cpu.cfs_period_us"))
    # No quota is written as "max" in version 2 and as -1 in version 1.
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def check_cores(cores: Cores) -> Check:
    """Check for enough cores to run draft and target in parallel."""
    quota = "" if cores.quota is None else f", quota {cores.quota:g}"
    found = f"{cores.usable} usable of {cores.machine} (affinity {cores.affinity}{quota})"
    if cores.usable == 1:
        return Check(
            "cores",
            "warn",
            found,
            "On one core the draft and the target take turns and lookahead gains nothing: allow two or more.",
        )
    return Check("cores", "ok", found)


def check_threads(usable_cores: int, environment: Mapping[str, str]) -> Check:
    """Look for settings that make the threads of two engines compete for the same cores."""
    problems = [
        f"{name}={environment[name]} with {usable_cores} usable core(s)"
        for name in THREAD_VARIABLES
        if environment.get(name, "").split(",")[0].strip().isdigit()
        and int(environment[name].split(",")[0]) > usable_cores
    ]
    problems += [
        f"{name}={environment[name]}"
        for name in PINNING_VARIABLES
        if environment.get(name, "").lower() not in ("", "false", "disabled", "none")
    ]
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        problems.append("OMP_WAIT_POLICY=active (idle threads spin)")
    if problems:
        names = " ".join(problem.partition("=")[0] for problem in problems)
        return Check("threads", "warn", "; ".join(problems), f"Run: unset {names}")
    import torch

    return Check("threads", "ok", f"torch would use {torch.get_num_threads()}; each engine sets its own")


def check_memory(free_bytes: int) -> Check:
    """Compare free memory with the need of two engine workers with the demonstration pair."""
    found = f"{free_bytes / GIB:.1f} GiB free"
    if free_bytes < MEMORY_NEEDED_BYTES:
        return Check("memory", "fail", found, "Two engine workers do not fit: free at least 1 GiB.")
    if free_bytes < MEMORY_WANTED_BYTES:
        return Check(
            "memory", "warn", found, "Enough for the demonstration pair; larger models will not fit."
        )
    return Check("memory", "ok", found)


# Models, grading, output ---------------------------------------------------------------------


def check_pair(locate: Callable[[Literal["draft", "target"]], Path] = embedded_path) -> Check:
    """Open the embedded draft and target as transformers would, without loading their weights."""
    try:
        sizes = {role: _count_parameters(locate(role)) for role in ("target", "draft")}
    except ReasonSpecError as error:
        return Check(
            "demonstration pair", "fail", str(error), "Or name other models with --target and --draft."
        )
    found = ", ".join(f"{role} {count / 1e6:.1f} M parameters" for role, count in sizes.items())
    return Check("demonstration pair", "ok", found)


def _count_parameters(folder: Path) -> int:
    """Return the number of parameters from the weights' headers; raises if a file is damaged."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoTokenizer

    AutoConfig.from_pretrained(folder, local_files_only=True)
    AutoTokenizer.from_pretrained(folder, local_files_only=True)
    count = 0
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {folder}")
    for file in files:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping: it has no __iter__
                size = 1
                for extent in tensors.get_slice(name).get_shape():
                    size *= extent
                count += size
    return count


def check_embedding_model() -> Check:
    """Load the default embedding model, whose hash is pinned, and encode one step with it."""
    from reason_spec.verifiers.encoder import MINILM_SHA256, SentenceEncoder

    async def encode() -> Embedding:
        encoder = SentenceEncoder()
        try:
            await encoder.start()
            return await encoder.encode("Ben has 12 + 5 = 17 apples.")
        finally:
            await encoder.close()

    try:
        (vector,) = asyncio.run(encode()).windows
    except ReasonSpecError as error:
        return Check("embedding model", "fail", str(error), f"Run: {install_line()}")
    found = f"all-MiniLM-L6-v2, {vector.size} dimensions, sha256 {MINILM_SHA256[:12]}..."
    return Check("embedding model", "ok", found)


def check_math_verify() -> Check:
    """Grade one LaTeX answer, which needs the parser runtime as well as the package."""
    from math_verify import parse, verify

    logger = logging.getLogger("math_verify")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # The package's own time-outs use signals, which only the main thread may set; it warns about
        # their absence.
        gold = parse(r"$\frac{1}{2}$", parsing_timeout=None)
        equal = verify(gold, parse(r"$0.5$", parsing_timeout=None), timeout_seconds=None)
    finally:
        logger.setLevel(level)
    version = importlib.metadata.version("math-verify")
    if not equal:
        return Check(
            "math-verify",
            "fail",
            f"{version} does not find 1/2 equal to 0.5",
            "Run: pip install --force-reinstall 'math-verify[antlr4_13_2]'",
        )
    return Check("math-verify", "ok", f"{version}, parses and compares LaTeX")


def check_output(folder: Path) -> Check:
    """Write a file where results would go, or in the nearest folder above it that exists."""
    name = "output folder"
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    remedy = "Name another folder with --output."
    if not place.is_dir():
        return Check(name, "fail", f"{place} is not a folder", remedy)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Check(name, "fail", f"cannot write in {place}: {error.strerror}", remedy)
    free = shutil.disk_usage(place).free
    found = f"{folder} can be written, {free / GIB:.1f} GiB free"
    if free < DISK_WANTED_BYTES:
        return Check(name, "warn", found, "Free some disk space, or name another folder with --output.")
    return Check(name, "ok", found)


def guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; an exception becomes a failed check with the first line of the error."""
    try:
        return check()
    except Exception as error:
        return Check(name, "fail", f"{type(error).__name__}: {_first_line(error)}", f"Run: {install_line()}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return re.sub(r"\s+", " ", lines[0]) if lines else type(error).__name__
