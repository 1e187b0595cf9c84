"""The placement of a run: device and memory of each model, without starting anything."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from reason_spec.accelerator.cores import available_cores, share_out_cores
from reason_spec.accelerator.verifier_models import judge_settings
from reason_spec.engines.footprint import footprint
from reason_spec.engines.machine import available_memory_bytes
from reason_spec.evaluation.amounts import size
from reason_spec.settings import EngineSettings, Settings, VerifierSettings
from reason_spec.strategies.factory import strategy_class

EXIT_DOES_NOT_FIT = 1
_ASKING = frozenset({"utility", "judge"})


def show_placement(settings: Settings, strategies: Sequence[str], *, as_json: bool) -> int:
    """Print the device and memory of each model; return 1 if a device lacks the memory.

    Raises:
        EngineError: a model's configuration cannot be read.
    """
    with_draft = any(strategy_class(name).needs_draft for name in strategies)
    cores = share_out_cores(settings, available_cores(), with_draft)
    verifiers = _verifiers(settings, strategies)
    rows = [_row("target", settings.target, cores[0])]
    if with_draft:
        rows.append(_row("draft", settings.draft, cores[1]))
    parts = {part for name in verifiers for part in name.split("+")}
    judge = judge_settings(settings)
    if judge is not None and not _ASKING.isdisjoint(parts):
        rows.append(_row("judge", judge, judge.cores or cores[0]))
    if settings.verifier.reward_url and "reward" in parts:
        rows.append(_reward_row(settings.verifier))
    short = _shortages(rows)
    if as_json:
        sys.stdout.write(json.dumps({"engines": rows, "shortages": short}, indent=2) + "\n")
    else:
        _print(rows, short, verifiers, strategies)
    return EXIT_DOES_NOT_FIT if short else 0


def _verifiers(settings: Settings, strategies: Sequence[str]) -> list[str]:
    names = (strategy_class(name).verifier_name(settings.verifier.name) for name in strategies)
    return list(dict.fromkeys(name for name in names if name is not None))


def _row(name: str, settings: EngineSettings, cores: tuple[int, ...]) -> dict[str, Any]:
    if settings.kind == "remote":
        return {
            "engine": name,
            "kind": "remote",
            "model": settings.model,
            "urls": list(settings.remote.base_urls),
        }
    if settings.kind == "scripted":
        return {"engine": name, "kind": "scripted", "model": settings.model}
    found = footprint(name, settings)
    return {
        "engine": name,
        **asdict(found),
        "model": settings.model,
        "on_each_device": found.on_each_device,
        "free": {place: free_memory(place) for place in found.places},
        "cores": list(cores),
    }


def _reward_row(settings: VerifierSettings) -> dict[str, Any]:
    return {
        "engine": "reward",
        "kind": "remote",
        "model": settings.reward_model or "the only one there",
        "urls": list(settings.reward_url),
    }


def free_memory(place: str) -> int | None:
    """Return the bytes that are free on a device; None where it is not seen from here."""
    if place == "cpu":
        return available_memory_bytes()
    import torch

    kind, _, number = place.partition(":")
    if kind != "cuda" or not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
        return None
    return torch.cuda.mem_get_info(int(number))[0]


def _shortages(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the models that do not fit, those of one device counted together."""
    needed: Counter[str] = Counter()
    free: dict[str, int] = {}
    for row in rows:
        for place, there in row.get("free", {}).items():
            if there is not None:
                needed[place] += row["on_each_device"]
                free[place] = there
    return [
        f"{place}: {size(needed[place])} needed at the least, {size(free[place])} free"
        for place in needed
        if needed[place] > free[place]
    ]


def _print(
    rows: Sequence[dict[str, Any]], short: Sequence[str], verifiers: Sequence[str], strategies: Sequence[str]
) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False)
    table.add_column()
    for row in rows:
        table.add_column(row["engine"], overflow="fold")
    columns = [_column(row) for row in rows]
    for label in dict.fromkeys(label for column in columns for label in column):
        table.add_row(label, *(column.get(label, "-") for column in columns))
    console.print(table)
    asked = ", ".join(verifiers) or "none"
    console.print(f"strategy {', '.join(strategies)}; verifier {asked}; nothing was started")
    for line in short:
        console.print(f"does not fit: {line}", style="red")


def _column(row: dict[str, Any]) -> dict[str, str]:
    column = {"model": row["model"], "runs in": row["kind"]}
    if "urls" in row:
        return {**column, "on": ", ".join(row["urls"])}
    if "device" not in row:
        return column
    place = row["device"] if row["num_devices"] == 1 else f"{row['device']} ({row['num_devices']} devices)"
    if row["device"] == "cpu":
        place += f", cores {','.join(map(str, row['cores']))}"
    tokens = row["cache_tokens"]
    per_token = size(row["per_cached_token"])
    cache = f"free memory, {per_token} a token"
    if tokens is not None:
        cache = f"{size(tokens * row['per_cached_token'])} for {tokens:,} tokens"
    free = [there for there in row["free"].values() if there is not None]
    return {
        **column,
        "on": place,
        "dtype": row["dtype"],
        "parameters": f"{row['num_parameters'] / 1e6:,.1f} M",
        "weights": size(row["weights"]),
        "keys and values": cache,
        "on each device": size(row["on_each_device"]),
        "free there": size(min(free)) if free else "not seen from here",
    }
