"""Opens the control of speculation: measures models, batches and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reason_spec.accelerator.bundle import ModelBundle
from reason_spec.control.answer_model import AssumedRates, StepForm
from reason_spec.control.controller import SpeculationController
from reason_spec.control.costs import BatchCosts, Costs
from reason_spec.control.load_controller import LoadController
from reason_spec.control.measuring import measure_batches, measure_costs
from reason_spec.control.planner import Planner
from reason_spec.engines.base import Engine
from reason_spec.settings import LoadControlSettings, StrategySettings
from reason_spec.strategies.factory import strategy_class
from reason_spec.verifiers.base import Verifier, measure_verdict


def can_plan(bundle: ModelBundle) -> bool:
    """Return whether there are two models whose passes can be measured."""
    return len(bundle.engines) == 2 and all(engine.has_costs for engine in bundle.engines)


async def measure_planners(
    bundle: ModelBundle, settings: StrategySettings, verifiers: Mapping[str, Verifier | None]
) -> dict[str, Planner]:
    """Measure both models and verdicts, and return the planners of those of the strategies that have one.

    ``verifiers`` are those of the strategies. None is planned where `can_plan` is false.
    """
    forms = {name: form for name in verifiers if (form := strategy_class(name).planned) is not None}
    if not forms or not can_plan(bundle):
        return {}
    assert bundle.draft is not None
    costs = await measure_costs(bundle.target, bundle.draft)
    planners: dict[str, Planner] = {}
    for name, form in forms.items():
        verifier = verifiers[name]
        if form == "judged":
            # The target reads the drafted step in one pass; the first answers show the rest.
            verdict = costs.target.seconds(AssumedRates().step_tokens)
        else:
            verdict = 0.0 if verifier is None else await measure_verdict(verifier)
        own = replace(costs, verdict=verdict)
        planners[name] = _planner(own, settings, form, bundle.target)
    return planners


def with_new_planners(
    control: SpeculationController, settings: StrategySettings, target: Engine
) -> SpeculationController:
    """Return the controller with planners of the same costs that have seen no answer."""
    planners = {
        name: _planner(planner.costs, settings, planner.form, target)
        for name, planner in control.planners.items()
    }
    return replace(control, planners=planners)


def _planner(costs: Costs, settings: StrategySettings, form: StepForm, target: Engine) -> Planner:
    # Drafts of the target's own token level are not part of the budget.
    is_budgeted = target.takes_hints and not target.drafts_itself
    max_draft_tokens = settings.num_draft_tokens if is_budgeted else 0
    return Planner(costs, max_depth=settings.depth, max_draft_tokens=max_draft_tokens, form=form)


async def open_controller(bundle: ModelBundle, settings: LoadControlSettings) -> LoadController | None:
    """Make the load controller, and measure what batches cost; None where the settings switch it off."""
    if settings.use == "off":
        return None
    cores, target, draft = bundle.cores, bundle.target, bundle.draft

    def costs() -> BatchCosts:
        times = () if draft is None else draft.batch_times
        return BatchCosts.of(target.batch_times, times, len(cores.beside_draft), len(cores.every))

    def give_cores(is_draft_idle: bool) -> None:
        if draft is not None:
            is_lone = controller.mode == "none" and controller.num_live == 1
            cores.follow_load(is_draft_idle=is_draft_idle, is_lone=is_lone)

    controller = LoadController(settings, costs, give_cores)
    if draft is not None and settings.at_most != "none":
        await _measure_batches(bundle)
    return controller


async def _measure_batches(bundle: ModelBundle) -> None:
    cores, target = bundle.cores, bundle.target
    engines = [engine for engine in bundle.engines if engine.reports_batch_times]
    for engine in engines:
        await measure_batches(engine, with_drafts=engine is target and engine.takes_hints)
    if target.reports_batch_times and cores.every != cores.beside_draft:
        await cores.use(cores.every)
        await measure_batches(target, with_drafts=False)
        await cores.use(cores.beside_draft)
    for engine in engines:
        await engine.reset_prefix_cache()
