"""The report as one self-contained HTML page: style, scripts and data are embedded."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml

import reason_spec
from reason_spec.evaluation.metrics import ALL_TASKS
from reason_spec.evaluation.records import writing
from reason_spec.lab.pages.data import page_data, tasks_of
from reason_spec.lab.pages.runs import Run, differing_settings
from reason_spec.lab.pages.tables import pairs_table, strategies_table

_ASSETS = files("reason_spec.lab.pages") / "assets"
_LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
_SCRIPTS = ("1-elements.js", "2-charts.js", "3-timeline.js", "4-answers.js")


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write the page about one or several runs.

    Raises:
        DataError: the file cannot be written.
    """
    with writing(path, "Name another file with --output."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page(runs), encoding="utf-8")


def render_page(runs: Sequence[Run]) -> str:
    """Return the page as HTML.

    Texts of models stay data: tables escape them, and all others are compressed and in base64, and the script
    makes text nodes of them. The content security policy allows the embedded style and script only, and no
    network access.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_asset("page.html.j2"))
    licence = f"/*\n{_asset('vendor/LICENSE')}*/"
    style, script = _asset("page.css"), "\n".join([licence, *map(_asset, (*_LIBRARIES, *_SCRIPTS))])
    data = page_data(runs)
    differing = differing_settings([run.settings for run in runs])
    return template.render(
        title=", ".join(run.path.resolve().name for run in runs),
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=base64.b64encode(gzip.compress(json.dumps(data, ensure_ascii=False).encode(), mtime=0)).decode(),
        runs=[_run_context(run, changed) for run, changed in zip(runs, differing, strict=True)],
        shown=_shown_note(runs, len(data["problems"])),
        footnotes=[note for run in runs for note in _footnotes(run)],
        made=f"Made by reason-spec {reason_spec.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the source expression of a content security policy that allows this text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _run_context(run: Run, differing: dict[str, Any]) -> dict[str, Any]:
    settings = run.settings.get("settings")
    return {
        "label": run.label,
        "title": run.title,
        "facts": _facts(run),
        "notices": run.notices,
        "tasks": [
            {
                "task": task,
                "strategies": strategies_table(run, task),
                "pairs": pairs_table(run, task),
                "warnings": [
                    (pair.strategy, pair.warning)
                    for pair in run.metrics.pairs
                    if pair.task == task and pair.warning
                ],
            }
            for task in tasks_of([run])
        ],
        "differing": list(differing.items()),
        "settings": yaml.safe_dump(settings, sort_keys=False, allow_unicode=True) if settings else "",
    }


def _facts(run: Run) -> dict[str, str]:
    """Return the facts at the head of the page."""
    settings = run.settings.get("settings") or {}
    roles = {role: settings.get(role) or {} for role in ("target", "draft")}
    models = ", ".join(f"{role} {engine.get('model', '?')}" for role, engine in roles.items())
    engines = ", ".join(sorted({str(engine.get("kind", "?")) for engine in roles.values()}))
    num_problems = len({outcome.id for outcome in run.outcomes})
    given = (run.settings.get("problems") or {}).get("num_problems") or num_problems
    num_samples = max(row.num_samples for row in run.metrics.strategies)
    missing = num_problems * len(run.strategies) * num_samples - len(run.outcomes)
    tasks = [task for task in tasks_of([run]) if task != ALL_TASKS]
    facts = {
        "models": models if settings else "not known",
        "engine": engines if settings else "not known",
        "settings": str(run.settings.get("settings_hash") or run.outcomes[0].settings_hash)[:8],
        "tasks": ", ".join(tasks) if tasks != ["auto"] else "",
        "problems": f"{num_problems} of {given}" if given > num_problems else str(num_problems),
        "answers": f"{len(run.outcomes)}, {missing} missing" if missing > 0 else str(len(run.outcomes)),
        "loss classes": ", ".join(sorted({row.loss_class for row in run.metrics.strategies})),
    }
    if run.sessions:
        facts["started"] = str(run.sessions[0].get("started", "?")).replace("T", " ")
        versions = run.sessions[-1].get("versions") or {}
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return {name: value for name, value in facts.items() if value}


def _shown_note(runs: Sequence[Run], num_shown: int) -> str:
    num_all = len({(number, o.id, o.sample) for number, run in enumerate(runs) for o in run.outcomes})
    sampled = any(row.num_samples > 1 for run in runs for row in run.metrics.strategies)
    each = ", each sample by itself" if sampled else ""
    if num_shown == num_all:
        return f"All {num_all} problems{each}, with the answers of each strategy."
    return (
        f"{num_shown} of {num_all} problems{each}, chosen evenly, so that the page does not grow too large. "
        "Tables and charts cover all of them. --limit-timelines shows more."
    )


def _footnotes(run: Run) -> list[str]:
    notes = []
    sizes = sorted({size for row in run.metrics.strategies for size in row.concurrency} - {1})
    if sizes:
        shown = ", ".join(map(str, sizes))
        notes.append(
            f"Seconds are the wall time of a batch of {shown} problems divided by its size; "
            "their intervals count batches."
        )
    if any(row.num_undecided for row in run.metrics.strategies):
        notes.append("Answers that could not be compared with their reference count as wrong.")
    return notes
