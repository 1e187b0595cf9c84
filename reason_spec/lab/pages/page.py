"""The report as one page that needs nothing else: style, script and data are in it."""

from __future__ import annotations

import base64
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
from reason_spec.lab.pages.tables import Cell, Table, pairs_table, strategies_table

_ASSETS = files("reason_spec.lab.pages") / "assets"
_SCRIPTS = ("1-svg.js", "2-charts.js", "3-timeline.js", "4-answers.js")


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

    Texts of models are data to it: in tables they are escaped, elsewhere they are in a block of JSON that
    only ever becomes text. The policy in its head lets no other script run, and nothing be fetched.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_asset("page.html.j2"))
    style, script = _asset("page.css"), "\n".join(map(_asset, _SCRIPTS))
    data = page_data(runs)
    return template.render(
        title=", ".join(run.path.resolve().name for run in runs),
        policy=_policy(style, script),
        style=style,
        script=script,
        data=_json_for_html(data),
        runs=[_run_context(run, differing) for run, differing in _with_differences(runs)],
        difficulty=_difficulty_note(runs),
        shown=_shown_note(runs, len(data["problems"])),
        footnotes=[note for run in runs for note in _footnotes(run)],
        made=f"Made by reason-spec {reason_spec.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """Return a source of a content security policy that allows this text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json_for_html(data: Any) -> str:
    """Return JSON for a script element, which nothing in a text can end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _with_differences(runs: Sequence[Run]) -> list[tuple[Run, dict[str, Any]]]:
    differing = differing_settings([run.settings for run in runs]) if len(runs) > 1 else [{} for _ in runs]
    return list(zip(runs, differing, strict=True))


def _run_context(run: Run, differing: dict[str, Any]) -> dict[str, Any]:
    tasks = tasks_of([run])
    return {
        "label": run.label,
        "title": run.title,
        "facts": facts(run),
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
            for task in tasks
        ],
        "differing": list(differing.items()),
        "sessions": _sessions_table(run),
        "settings": _settings_text(run),
    }


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what a reader has to know of a run first: a name and a value each."""
    settings = run.settings.get("settings") or {}
    models = [f"{role} {(settings.get(role) or {}).get('model', '?')}" for role in ("target", "draft")]
    engines = {str((settings.get(role) or {}).get("kind", "?")) for role in ("target", "draft")}
    problems = {outcome.id for outcome in run.outcomes}
    given = (run.settings.get("problems") or {}).get("num_problems")
    num_samples = max(row.num_samples for row in run.metrics.strategies)
    complete = len(problems) * len(run.strategies) * num_samples
    shown = [
        ("models", ", ".join(models) if settings else "not known"),
        ("engine", ", ".join(sorted(engines)) if settings else "not known"),
        ("settings", str(run.settings.get("settings_hash") or run.outcomes[0].settings_hash)[:8]),
        (
            "problems",
            f"{len(problems)} of {given}" if given and given > len(problems) else str(len(problems)),
        ),
        ("answers", _answers_fact(len(run.outcomes), complete)),
        ("loss classes", ", ".join(sorted({row.loss_class for row in run.metrics.strategies}))),
    ]
    tasks = [task for task in tasks_of([run]) if task != ALL_TASKS]
    if tasks != ["auto"]:
        shown.insert(3, ("tasks", ", ".join(tasks)))
    if run.sessions:
        shown.append(("begun", str(run.sessions[0].get("started", "?")).replace("T", " ")))
        versions = run.sessions[-1].get("versions") or {}
        shown.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return shown


def _answers_fact(number: int, complete: int) -> str:
    missing = complete - number
    return f"{number}, {missing} missing" if missing > 0 else str(number)


def _sessions_table(run: Run) -> Table:
    headings = (
        ("start of the command", "Each time that the run was begun or gone on with"),
        ("session", "Its name in the results"),
        ("answers", "How many answers it wrote"),
        ("strategies", "Which strategies it was told to run"),
    )
    counts = {str(session.get("session")): 0 for session in run.sessions}
    for outcome in run.outcomes:
        counts[outcome.session] = counts.get(outcome.session, 0) + 1
    rows = tuple(
        (
            Cell(str(session.get("started", "?")).replace("T", " ")),
            Cell(str(session.get("session"))),
            Cell(str(counts[str(session.get("session"))])),
            Cell(", ".join(session.get("strategies") or ())),
        )
        for session in run.sessions
    )
    return Table(headings, rows)


def _settings_text(run: Run) -> str:
    settings = run.settings.get("settings")
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True) if settings else ""


def _difficulty_note(runs: Sequence[Run]) -> str:
    if any(outcome.level is not None for run in runs for outcome in run.outcomes):
        return "By the level that the file of problems states, where it states one."
    return "By the length of the baseline's answer; each group is a quarter of the problems."


def _shown_note(runs: Sequence[Run], num_shown: int) -> str:
    num_all = len({(number, o.id, o.sample) for number, run in enumerate(runs) for o in run.outcomes})
    sampled = any(row.num_samples > 1 for run in runs for row in run.metrics.strategies)
    apart = ", each sample by itself" if sampled else ""
    if num_shown == num_all:
        return f"All {num_all} problems{apart}, with the answers of each strategy."
    return (
        f"{num_shown} of {num_all} problems{apart}, chosen evenly, so that the page does not grow too large; "
        "tables and charts are about all of them. --limit-timelines shows more."
    )


def _footnotes(run: Run) -> list[str]:
    notes = []
    sizes = sorted({size for row in run.metrics.strategies for size in row.concurrency} - {1})
    if sizes:
        shown = ", ".join(map(str, sizes))
        notes.append(f"Seconds are the wall time of a batch of {shown} problems divided by its size.")
    if any(row.num_undecided for row in run.metrics.strategies):
        notes.append("Answers that could not be compared with their reference count as wrong.")
    return notes
