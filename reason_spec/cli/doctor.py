"""The command ``doctor``: is the installation sound, and do the models fit?"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import shlex
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

import reason_spec
from reason_spec.cli.flags import MODEL_FLAGS, Flags, takes_flags
from reason_spec.cli.options import JsonOption
from reason_spec.engines.machine import available_memory_bytes, read_words
from reason_spec.errors import EngineError, ReasonSpecError
from reason_spec.settings import EngineSettings, Settings

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from rich.table import Table

    from reason_spec.engines.footprint import Footprint
    from reason_spec.verifiers.encoder import Embedding

Status: TypeAlias = Literal["ok", "warn", "fail"]
"""``warn``: it runs, but slower or with a part missing. ``fail``: the main job cannot run."""
DISTRIBUTION = "reason-spec"
_ASKING = frozenset({"utility", "judge"})
"""Verifiers that ask a model of their own."""
_REINSTALL = f"Run: pip install '{DISTRIBUTION}'"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``remedy`` is empty if nothing needs to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


@takes_flags(*MODEL_FLAGS, "strategy", "verifier")
def doctor(flags: Flags, as_json: JsonOption = False) -> None:
    """Check the installation and whether the models fit this machine; start nothing."""
    checks = run_checks(flags.resolve())
    if as_json:
        typer.echo(to_json(checks))
    else:
        from rich.console import Console

        Console().print(render(checks))
    raise typer.Exit(exit_code(checks))


def run_checks(settings: Settings) -> list[Check]:
    """Run all checks. One that raises becomes a failed check, so that the others still run.

    Must not be called from inside an event loop: the encoders are tried in one of its own.
    """
    checks = {
        "packages": check_packages,
        "torch": check_torch,
        "transformers": check_transformers,
        "bytecode": check_bytecode,
        "cores": check_cores,
        "step encoder": check_step_encoder,
        "embedding model": check_embedding_model,
        "optional parts": check_extras,
    }
    return [*(_guarded(name, check) for name, check in checks.items()), *check_models(settings)]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Check(name, "fail", f"{type(error).__name__}: {first}", _REINSTALL)


# Installation --------------------------------------------------------------------------------


def check_packages() -> Check:
    """Compare every required package with the range this distribution declares for it."""
    required = list(_requirements(""))
    if not required:
        return Check("packages", "warn", "reason-spec is not installed", "Run `make install`.")
    wrong = [problem for problem in map(requirement_problem, required) if problem]
    if wrong:
        return Check("packages", "fail", "; ".join(wrong), _REINSTALL)
    return Check("packages", "ok", f"{len(required)} required packages in their tested ranges")


def check_extras() -> Check:
    """Say which optional parts are installed, and how to install the others."""
    extras = sorted(importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ())
    needed = {
        extra: [requirement for requirement in _requirements(extra) if "extra" in str(requirement.marker)]
        for extra in extras
    }
    installed = [extra for extra in extras if not any(map(requirement_problem, needed[extra]))]
    others = [extra for extra in extras if extra not in installed]
    found = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(others) or 'none'}"
    return Check("optional parts", "ok", f"{found} (pip install '{DISTRIBUTION}[NAME]')")


def _requirements(extra: str) -> Iterator[Requirement]:
    """Yield the requirements of this distribution with those of one extra; none where it is not installed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def requirement_problem(requirement: Requirement) -> str | None:
    """Say how an installed package misses its requirement, None where it does not."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} {version} is outside {requirement.specifier}"
    return None


def check_torch() -> Check:
    """Import torch and name the device it would run on."""
    import torch

    version = torch.__version__
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        return Check("torch", "ok", f"{version}, {torch.cuda.device_count()} x {device.name}")
    if torch.backends.mps.is_available():
        return Check("torch", "ok", f"{version}, Apple GPU (mps)")
    return Check("torch", "ok", f"{version}, CPU" + (", built for CUDA" if torch.version.cuda else ""))


def check_transformers() -> Check:
    """Import the model class of the demonstration pair."""
    import transformers

    try:
        from transformers import Qwen3ForCausalLM
    except Exception as error:
        # transformers imports torchvision if it is there; built for another torch, it breaks the models.
        remedy = (
            "If torchvision is named, it is not needed: pip uninstall -y torchvision torchaudio torchcodec"
        )
        return Check("transformers", "fail", str(error), remedy)
    return Check("transformers", "ok", f"{transformers.__version__}, {Qwen3ForCausalLM.__name__} loads")


def check_bytecode(package: str = "transformers") -> Check:
    """See whether each worker of an engine compiles its packages anew; the package has been imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or (spec.cached is not None and Path(spec.cached).exists()):
        return Check("bytecode", "ok", "packages are compiled")
    return Check(
        "bytecode",
        "warn",
        "each start of an engine compiles torch and transformers, which takes several seconds",
        "Unset PYTHONDONTWRITEBYTECODE, or run this as a user who may write there: "
        f"{shlex.quote(sys.executable)} -m compileall -q {shlex.quote(sysconfig.get_path('purelib'))}",
    )


def check_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Check:
    """Check for enough cores to run draft and target in parallel; a container's quota limits them too."""
    from reason_spec.accelerator.cores import available_cores

    usable = float(len(available_cores()))
    quota = read_words(cgroup / "cpu.max")
    if len(quota) == 2 and all(map(str.isdigit, quota)):
        usable = min(usable, int(quota[0]) / int(quota[1]))
    if usable < 2:
        remedy = "On one core draft and target take turns and lookahead gains nothing: allow two or more."
        return Check("cores", "warn", f"{usable:g} usable", remedy)
    return Check("cores", "ok", f"{usable:g} usable")


def check_step_encoder() -> Check:
    """Load the encoder of the verifier ``semantic`` and compare two steps with it."""
    from reason_spec.verifiers.pair_encoder import PairEncoder

    async def compare() -> float | None:
        encoder = PairEncoder()
        try:
            await encoder.start()
            return await encoder.probability("", "Ben has 12 + 5 = 17 apples.", "So Ben has 17.")
        finally:
            await encoder.close()

    try:
        probability = asyncio.run(compare())
    except ReasonSpecError as error:
        return Check("step encoder", "fail", str(error), _REINSTALL)
    assert probability is not None
    return Check("step encoder", "ok", f"packaged, two wordings of a step: {probability:.2f}")


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
        return Check("embedding model", "fail", str(error), _REINSTALL)
    found = f"all-MiniLM-L6-v2, {vector.size} dimensions, sha256 {MINILM_SHA256[:12]}..."
    return Check("embedding model", "ok", found)


# Models ----------------------------------------------------------------------------------------


def check_models(settings: Settings) -> list[Check]:
    """Check the size of each model of the settings' strategy, and the memory of their devices."""
    from reason_spec.accelerator.verifier_models import judge_settings
    from reason_spec.strategies.factory import strategy_class

    strategy = strategy_class(settings.strategy.name)
    models = {"target": settings.target}
    if strategy.needs_draft:
        models["draft"] = settings.draft
    asked = (strategy.verifier_name(settings.verifier.name) or "").split("+")
    judge = judge_settings(settings)
    if judge is not None and not _ASKING.isdisjoint(asked):
        models["judge"] = judge
    needed: Counter[str] = Counter()
    checks = [check_model(name, model, needed) for name, model in models.items()]
    return [*checks, *(check_memory(place, size, free_memory(place)) for place, size in needed.items())]


def check_model(name: str, settings: EngineSettings, needed: Counter[str]) -> Check:
    """Describe where a model runs and its size; add the bytes that it needs on each device to ``needed``."""
    from reason_spec.engines.footprint import footprint

    if settings.kind == "remote":
        return Check(name, "ok", f"{settings.model} at {', '.join(settings.remote.base_urls)}")
    if settings.kind == "scripted":
        return Check(name, "ok", f"{settings.model}, scripted")
    try:
        found = footprint(name, settings)
    except EngineError as error:
        return Check(name, "fail", str(error))
    for place in found.places:
        needed[place] += found.on_each_device
    return Check(name, "ok", _description(found))


def _description(found: Footprint) -> str:
    from reason_spec.evaluation.amounts import size

    cache = "the rest of the memory"
    if found.cache_tokens is not None:
        cache = f"{size(found.cache)} for {found.cache_tokens:,} tokens"
    name = found.model if found.folder == found.model else f"{found.model} (files in {found.folder})"
    return (
        f"{name} in {found.kind} on {', '.join(found.places)}: {found.num_parameters / 1e6:,.1f} M "
        f"parameters, {found.dtype}, weights {size(found.weights)}, keys and values {cache}"
    )


def free_memory(place: str) -> int | None:
    """Return the bytes that are free on a device; None where it is not seen from here."""
    if place == "cpu":
        return available_memory_bytes()
    import torch

    kind, _, number = place.partition(":")
    if kind != "cuda" or not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
        return None
    return torch.cuda.mem_get_info(int(number))[0]


def check_memory(place: str, needed: int, free: int | None) -> Check:
    """Compare what the models of one device need at least, without the runtime, with what is free there."""
    from reason_spec.evaluation.amounts import size

    name = f"memory of {place}"
    if free is None:
        return Check(name, "warn", f"{size(needed)} needed at the least; not seen from here")
    found = f"{size(needed)} needed at the least, {size(free)} free"
    if needed > free:
        return Check(name, "fail", found, "Free memory, or choose smaller models, dtype or cache_tokens.")
    return Check(name, "ok", found)


# The screen ------------------------------------------------------------------------------------


def exit_code(checks: Iterable[Check]) -> int:
    """Return 1 where a check failed, else 0; warnings do not count."""
    return int(any(check.status == "fail" for check in checks))


def to_json(checks: Sequence[Check]) -> str:
    """Return the checks and the version they were made with as one JSON object."""
    report = {
        "version": reason_spec.__version__,
        "ok": exit_code(checks) == 0,
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(report, indent=2, ensure_ascii=False)


def render(checks: Sequence[Check]) -> Table:
    """Return the checks as a table for the terminal, remedies under what was found."""
    from rich.markup import escape
    from rich.table import Table

    colours: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(title=f"reason-spec {reason_spec.__version__}", title_justify="left", show_lines=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        colour = colours[check.status]
        text = escape(check.found)
        if check.remedy:
            text += f"\n[{colour}]-> {escape(check.remedy)}[/]"
        table.add_row(check.name, f"[{colour}]{check.status}[/]", text)
    return table
