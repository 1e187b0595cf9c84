"""Questions on the screen: their answers step by step, with their numbers at the end."""

from __future__ import annotations

import time
from contextlib import aclosing

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.cli.screen import Screen
from reason_spec.cli.transcript import Transcript
from reason_spec.evaluation.amounts import ratio_text, seconds_text
from reason_spec.evaluation.batch import WorkItem, work_items
from reason_spec.evaluation.job import RunOptions, start_engines
from reason_spec.evaluation.outcome import Outcome, outcome_from
from reason_spec.evaluation.prompts import ask_for
from reason_spec.evaluation.sources import Sources
from reason_spec.events import Recorder
from reason_spec.settings import Settings


async def answer_questions(
    settings: Settings, sources: Sources, options: RunOptions, screen: Screen, *, show_rejected: bool = False
) -> None:
    """Print the answer to each question step by step, with its numbers at the end; store nothing."""
    items = work_items(sources.problems, options.samples)
    accelerator = Accelerator.from_settings(settings, strategies=options.strategies)
    try:
        await start_engines(accelerator, settings, screen)
        for item in items:
            if len(items) > 1 and not screen.quiet:
                screen.out.print(_heading(item, options), style="bold")
            await _answer(accelerator, item, screen, show_rejected)
    finally:
        await accelerator.close()


async def _answer(accelerator: Accelerator, item: WorkItem, screen: Screen, show_rejected: bool) -> None:
    transcript = Transcript(screen.out, plain=screen.quiet, show_rejected=show_rejected)
    strategy = accelerator.generator.strategy()
    await accelerator.prepare(strategy.name)
    recorder = Recorder(transcript.listen)
    asked = ask_for(item.problem, accelerator.settings, sample=item.sample)
    solving = accelerator.solve(asked, recorder=recorder)
    steps = []
    async with aclosing(solving):
        async for step in solving:
            steps.append(step)
            if not screen.as_json:
                transcript.print(step)
    seconds = time.perf_counter() - recorder.started
    text = "".join(step.text for step in steps)
    loss_class = accelerator.generator.loss_class(strategy, asked)
    solution = Solution(text, tuple(steps), seconds, strategy.name, loss_class, recorder)
    outcome = outcome_from(item.problem, item.sample, solution, accelerator.settings, index=item.position)
    if screen.as_json:
        screen.write(outcome.to_json())
        return
    transcript.end()
    if not screen.quiet:
        screen.out.print(answer_line(outcome), style="dim", soft_wrap=True)


def answer_line(outcome: Outcome) -> str:
    """Return the numbers of one answer on one line."""
    origins = ", ".join(f"{origin} {count}" for origin, count in outcome.num_steps_by_origin.items())
    thinking = "" if outcome.thinking is None else f" ({outcome.thinking.num_tokens} of thinking)"
    return (
        f"{outcome.tokens} tokens{thinking}, {seconds_text(outcome.seconds)} s, "
        f"{outcome.tokens_per_second:.1f} tokens/s | steps: {origins or 'none'}"
        f" | alpha_step {ratio_text(outcome.alpha_step)} | alpha_token {ratio_text(outcome.alpha_token)}"
        f"{_exit_text(outcome)}"
    )


def _exit_text(outcome: Outcome) -> str:
    found, usage = outcome.early_exit, outcome.usage
    probes = f", {usage.num_probes} trials of {usage.num_probe_tokens} tokens" if usage.num_probes else ""
    if found is None:
        return f" | not ended early{probes}" if probes else ""
    return f" | ended by {found.rule} after step {found.num_steps}, chance {found.chance:.3f}{probes}"


def _heading(item: WorkItem, options: RunOptions) -> str:
    sample = f" (sample {item.sample + 1} of {options.samples})" if options.samples > 1 else ""
    return item.problem.question + sample
