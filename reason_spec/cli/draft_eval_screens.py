"""What ``draft eval`` reads and prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from reason_spec.accelerator.engine_drafter import drafter_folder
from reason_spec.cli.command import run_interruptible
from reason_spec.cli.flags import Flags
from reason_spec.cli.screen import Screen
from reason_spec.engines.eagle_files import is_head, read_head_config
from reason_spec.engines.pruned import find_pruned
from reason_spec.errors import SettingsError
from reason_spec.evaluation.amounts import counted, percent, percent_range, range_text, times_text
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.sources import read_sources, sample_of
from reason_spec.lab.drafts.evaluation import DraftReport, evaluate_draft
from reason_spec.lab.drafts.speedups import StepLevel
from reason_spec.settings import Settings
from reason_spec.settings.engines import SELF_DRAFT


def measure_draft(
    flags: Flags,
    draft: str,
    sources: Sequence[str] | None,
    screen: Screen,
    *,
    output: Path | None,
    fresh: bool,
    depth: int | None = None,
) -> None:
    """Measure a draft on problems, those of the package where none are given, and print what was found.

    Args:
        depth: most steps ahead; None leaves the setting.
    """
    settings = settings_for_draft(flags, draft, depth)
    chosen = read_sources(
        sources or [],
        settings.task.name,
        sample=sample_of(settings, not sources),
        limit=flags.given["limit"],
        skip_bad=flags.given["skip_bad"],
    )
    show_report(run_interruptible(evaluate_draft(settings, chosen, output, screen, fresh=fresh)), screen)


def settings_for_draft(flags: Flags, draft: str, depth: int | None = None) -> Settings:
    """Return the settings of an evaluation; the target is the one that a pruned draft was made of.

    Raises:
        SettingsError: no target is named, an engine is not the torch engine, or the draft is `self`.
        EngineError: the files of a draft are damaged.
    """
    base, revision = (None, None) if draft == "embedded" else _base_of(draft)
    given = {"draft.model": draft} if depth is None else {"draft.model": draft, "strategy.depth": depth}
    settings = flags.resolve(given, {} if base is None else {"target.model": base})
    if revision is not None and (settings.target.model, settings.target.revision) == (base, None):
        target = settings.target.model_copy(update={"revision": revision})
        settings = settings.model_copy(update={"target": target})
    if draft == SELF_DRAFT:
        raise SettingsError(
            "draft self is the target with fewer layers, which are searched while it runs; before that there "
            "is nothing to measure. 'reason-spec eval --compare autoregressive,self_speculative' with "
            "--target and --draft self times it"
        )
    unnamed = base is None and flags.given["target"] is None and settings.target.model == "embedded"
    if unnamed and draft != "embedded":
        raise SettingsError(f"draft {draft!r} does not say what its target is; name it with --target")
    for role, engine in (("target", settings.target), ("draft", settings.draft)):
        if engine.kind != "torch":
            raise SettingsError(f"{role}.kind is {engine.kind!r}; drafts are measured with kind: torch")
    return settings


def _base_of(draft: str) -> tuple[str | None, str | None]:
    """Return the target that a draft was made of and its revision; None where it does not say."""
    if is_head(folder := drafter_folder(draft)):
        return read_head_config(folder).base, None
    pruned = find_pruned(draft)
    return (None, None) if pruned is None else (pruned.config.base, pruned.config.revision)


def show_report(report: DraftReport, screen: Screen) -> None:
    """Print the measurements of a draft, as JSON where that is wanted."""
    if screen.as_json:
        tokens_per_pass = report.alpha_token[0].tokens_per_pass
        screen.write_json(asdict(report) | {"tokens_per_pass": tokens_per_pass})
        return
    tables = [_token_table(report), _step_table(report), _speed_table(report)]
    for table in tables if report.alpha_step else (tables[0], tables[-1]):
        screen.print_table(table)
    if report.step_level is not None:
        screen.print(_step_level(report.step_level))
    for name, reason in report.left_out.items():
        screen.say(f"verifier {name} is left out: {reason}")
    screen.print(
        f"c = {report.c:.3f}: a draft token takes {report.draft_token_ms:.2f} ms, a target token "
        f"{report.target_token_ms:.2f} ms, each model alone."
    )
    shares = ", ".join(f"{percent(share)} at T = {at}" for at, share in report.looping.items())
    screen.print(f"Left out, as the text loops there: {shares} of the target's tokens.")
    screen.say(f"Answers: {report.folder}")


def _token_table(report: DraftReport) -> Table:
    greedy = report.alpha_token[0]
    table = _table("Draft tokens", ("", "share", "95 %", "tokens"))
    for each in report.alpha_token:
        name = f"accepted at T = {each.temperature:g}"
        table.add_row(name, *_share_cells(each.alpha), f"{each.num_tokens:,}")
    for place, accepted in enumerate(greedy.in_a_row[1:], start=2):
        table.add_row(f"{place} greedy ones in a row", percent(accepted), "", "")
    table.add_row(
        f"tokens of a pass with {len(greedy.in_a_row)} drafts", f"{greedy.tokens_per_pass:.2f}", "", ""
    )
    return table


def _step_table(report: DraftReport) -> Table:
    table = _table("Draft steps, at T = 0", ("verifier", "accepted", "95 %", "steps", ""))
    for each in report.alpha_step:
        judged = "judges the draft's step alone" if each.alone else ""
        table.add_row(each.verifier, *_share_cells(each.alpha), f"{each.num_steps:,}", judged)
    return table


def _speed_table(report: DraftReport) -> Table:
    title = f"Speed-up over the target alone, {counted(report.num_problems, 'problem')}, T = 0"
    table = _table(
        title, ("strategy", "formula", "simulated", "measured", "95 %", "same tokens", "best split")
    )
    for each in report.speedups:
        split = f"{counted(each.split.depth, 'step')} ahead, {counted(each.split.num_drafts, 'draft token')}"
        table.add_row(
            each.strategy,
            times_text(each.split.speedup),
            times_text(each.simulated),
            times_text(each.measured.value),
            range_text(each.measured.interval, lambda value: f"{value:.2f}"),
            f"{each.num_identical}/{each.num_problems}",
            split,
        )
    return table


def _step_level(level: StepLevel) -> str:
    """Say on which side of the line a pair is."""
    if level.pays_from is None:
        line = "Steps ahead cannot pay here, even if every drafted step is accepted"
    else:
        side = "pay" if level.pays else "do not pay"
        line = f"Steps ahead {side} here: they need alpha_step {level.pays_from:.2f}"
    share = f"{level.verifier} accepts {percent(level.alpha_step.value)} of the draft's steps"
    if level.measured is None:
        return f"{line}, and {share}."
    interval = range_text(level.measured.interval, lambda value: f"{value:.2f}")
    ratio = f"{times_text(level.measured.value)} ({interval})"
    return f"{line}, and {share}. Measured: lookahead, as planned, has {ratio} the speed of speculative."


def _share_cells(estimate: Estimate) -> tuple[str, str]:
    return percent(estimate.value), percent_range(estimate.interval)


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table
