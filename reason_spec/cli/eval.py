"""The command ``eval``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.flags import (
    GENERATE_FLAGS,
    MODEL_FLAGS,
    PROBLEM_FLAGS,
    SAMPLING_FLAGS,
    STRATEGY_FLAGS,
    Flags,
    takes_flags,
)
from reason_spec.cli.options import (
    OUTPUT,
    CompareOption,
    ConcurrencyOption,
    FreshOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SamplesOption,
    StopSamplesOption,
    compared_strategies,
    option,
)
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.evaluation.job import Backend

EVAL_HELP = (
    "Measure strategies on whole tasks: accuracy, seconds and tokens, with intervals and paired "
    "comparisons.\n\n"
    "Problems are files, as FILE or TASK=FILE, or data sets of the Hugging Face hub, as hf:openai/gsm8k, "
    "hf:NAME:CONFIG or hf:NAME@SPLIT; several in one run. Without --compare the strategy of the settings is "
    "compared with the target alone. A stopped run continues with the same command."
)


TaskSourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TASK=]FILE...",
        help="Files of problems (jsonl, json, also gzip), or data sets: hf:NAME, hf:NAME:CONFIG@SPLIT.",
        show_default=False,
    ),
]
RetriesOption = Annotated[
    int, option("--retries", "Retries of an answer whose engine failed. Default: 2.", OUTPUT, min=0)
]
TimelinesOption = Annotated[
    bool,
    option(
        "--timelines/--no-timelines",
        "Store a timeline of each answer, for reports. Default: stored.",
        OUTPUT,
    ),
]
RayOption = Annotated[
    str | None,
    option(
        "--ray",
        "Run on a Ray cluster: local:N for N workers on this machine, auto, or the cluster's address.",
        OUTPUT,
        metavar="ADDRESS",
    ),
]


@takes_flags(*PROBLEM_FLAGS, *GENERATE_FLAGS, "prompt", *STRATEGY_FLAGS, *MODEL_FLAGS, *SAMPLING_FLAGS)
def evaluate(
    flags: Flags,
    sources: TaskSourcesArgument = None,
    samples: SamplesOption = 1,
    stop_samples: StopSamplesOption = None,
    compare: CompareOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    retries: RetriesOption = 2,
    timelines: TimelinesOption = True,
    ray: RayOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure strategies on whole tasks."""
    from reason_spec.cli.results_table import show_result
    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.grouping import BASELINE
    from reason_spec.evaluation.job import RunOptions, run_job
    from reason_spec.evaluation.sources import generated_sources, read_task_sources

    flags.refuse_strategy_beside(compare)
    settings = flags.resolve()
    named = (BASELINE, settings.strategy.name) if compare is None else compared_strategies(compare, 1)
    strategies = tuple(dict.fromkeys(named))
    if ray is not None and stop_samples is not None:
        raise SettingsError("--stop-samples needs all samples of a problem in one process: leave out --ray")
    options = RunOptions(strategies, samples, concurrency, output, fresh, retries, timelines, stop_samples)
    backend = None if ray is None else _ray_backend(ray)
    chosen = flags.problems(settings, sources, read_task_sources, generated_sources)
    screen = Screen(quiet=quiet, as_json=as_json)
    result = run_interruptible(run_job(settings, chosen, options, screen, backend))
    raise typer.Exit(show_result(result, screen))


def _ray_backend(address: str) -> Backend:
    """Return the workers of a cluster.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    from reason_spec.lab.cluster.runner import Cluster, RayBackend, require_ray

    cluster = Cluster.parse(address)
    require_ray()
    return RayBackend(cluster)
