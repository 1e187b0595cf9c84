"""The command ``eval``."""

from __future__ import annotations

import typer

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.options import (
    CompareOption,
    ConcurrencyOption,
    ConfigOption,
    DepthOption,
    DraftOption,
    DraftUrlOption,
    DryRunOption,
    EngineOption,
    FreshOption,
    GenerateOption,
    GenerateSeedOption,
    JsonOption,
    LimitOption,
    MaxTokensOption,
    OutputOption,
    PricesOption,
    PromptOption,
    QuietOption,
    RayOption,
    RetriesOption,
    RouterOption,
    SampleOption,
    SamplesOption,
    SeedOption,
    SetOption,
    SkipBadOption,
    StopOption,
    StrategyOption,
    TargetOption,
    TargetUrlOption,
    TaskOption,
    TaskSourcesArgument,
    TemperatureOption,
    TimelinesOption,
    TopKOption,
    TopPOption,
    VerifierOption,
    WidthOption,
    compared_strategies,
    resolve_settings,
    settings_flags,
)
from reason_spec.errors import SettingsError

EVAL_HELP = (
    "Measure strategies on whole tasks: accuracy, seconds, tokens and cost, with intervals and paired "
    "comparisons.\n\n"
    "Problems are files, as FILE or TASK=FILE, or data sets of the Hugging Face hub, as hf:openai/gsm8k, "
    "hf:NAME:CONFIG or hf:NAME@SPLIT; several in one run. Without --compare the strategy of the settings is "
    "measured against the target alone. A run that was stopped goes on where it was."
)


def evaluate(
    sources: TaskSourcesArgument = None,
    sample: SampleOption = False,
    generate: GenerateOption = None,
    generate_seed: GenerateSeedOption = 0,
    task: TaskOption = None,
    limit: LimitOption = None,
    samples: SamplesOption = 1,
    skip_bad: SkipBadOption = False,
    prompt: PromptOption = None,
    strategy: StrategyOption = None,
    compare: CompareOption = None,
    verifier: VerifierOption = None,
    router: RouterOption = None,
    depth: DepthOption = None,
    width: WidthOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    target_url: TargetUrlOption = None,
    draft_url: DraftUrlOption = None,
    engine: EngineOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = None,
    stop: StopOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    retries: RetriesOption = 2,
    timelines: TimelinesOption = True,
    prices: PricesOption = None,
    ray: RayOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure strategies on whole tasks."""
    from reason_spec.evaluation.console import RunOptions
    from reason_spec.evaluation.evaluate import EvalOptions
    from reason_spec.evaluation.evaluate import evaluate as run_evaluation
    from reason_spec.evaluation.prices import read_prices
    from reason_spec.evaluation.sources import sample_of
    from reason_spec.evaluation.summary import BASELINE
    from reason_spec.evaluation.task_sources import generated_sources, read_task_sources
    from reason_spec.lab.cluster.runner import Cluster

    if strategy is not None and compare is not None:
        raise SettingsError("--strategy and --compare exclude each other; --compare names all strategies")
    if generate is not None and (sources or sample):
        raise SettingsError("--generate makes all problems itself: leave out files and --sample")
    settings = resolve_settings(config, settings_flags(locals()), assignments)
    named = (
        (BASELINE, settings.strategy.name) if compare is None else compared_strategies(compare, at_least=1)
    )
    strategies = tuple(dict.fromkeys(named))
    if dry_run:
        from reason_spec.cli.dry_run import show_placement

        raise typer.Exit(show_placement(settings, strategies, as_json=as_json))
    options = EvalOptions(
        RunOptions(
            strategies=strategies,
            samples=samples,
            concurrency=concurrency,
            output=output,
            fresh=fresh,
            as_json=as_json,
            quiet=quiet,
        ),
        num_retries=retries,
        timelines=timelines,
        prices=None if prices is None else read_prices(prices),
        cluster=None if ray is None else Cluster.parse(ray),
    )
    chosen = (
        read_task_sources(
            sources or [],
            settings.task.name,
            sample=sample_of(settings, sample),
            limit=limit,
            skip_bad=skip_bad,
        )
        if generate is None
        else generated_sources(generate, generate_seed)
    )
    raise typer.Exit(run_interruptible(run_evaluation(settings, chosen, options)))
