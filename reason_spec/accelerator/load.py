"""Opens the control of speculation: measures models, batches and a verdict."""

from __future__ import annotations

from dataclasses import replace

from reason_spec.accelerator.bundle import ModelBundle
from reason_spec.control.controller import SpeculationController
from reason_spec.control.costs import BatchCosts, Costs
from reason_spec.control.load_controller import LoadController
from reason_spec.control.measuring import measure_batches, measure_costs
from reason_spec.control.planner import Planner
from reason_spec.settings import LoadControlSettings, StrategySettings
from reason_spec.verifiers.base import Verifier, measure_verdict


def can_plan(bundle: ModelBundle) -> bool:
    """Return whether there are two models whose passes can be measured."""
    return len(bundle.engines) == 2 and all(engine.has_costs for engine in bundle.engines)


async def measure_planner(
    bundle: ModelBundle, settings: StrategySettings, verifier: Verifier | None
) -> Planner:
    """Measure both models and a verdict, and return a planner for their costs; see `can_plan`."""
    assert bundle.draft is not None, "a planner is for two models"
    verdict = 0.0 if verifier is None else await measure_verdict(verifier)
    costs = await measure_costs(bundle.target, bundle.draft, verdict=verdict)
    return _planner(costs, settings, takes_hints=bundle.target.takes_hints)


def with_new_planner(
    control: SpeculationController, settings: StrategySettings, *, takes_hints: bool
) -> SpeculationController:
    """Return the controller with a planner of the same costs that has seen no answer; without one, as it
    is."""
    if control.planner is None:
        return control
    return replace(control, planner=_planner(control.planner.costs, settings, takes_hints=takes_hints))


def _planner(costs: Costs, settings: StrategySettings, *, takes_hints: bool) -> Planner:
    # Drafts of the target's own token level are not part of the budget.
    max_draft_tokens = settings.num_draft_tokens if takes_hints else 0
    return Planner(costs, max_depth=settings.depth, max_draft_tokens=max_draft_tokens)


async def open_controller(bundle: ModelBundle, settings: LoadControlSettings) -> LoadController | None:
    """Make the load controller, and measure what batches cost; None where the settings switch it off."""
    if settings.use == "off":
        return None
    cores, target, draft = bundle.cores, bundle.target, bundle.draft

    def costs() -> BatchCosts:
        times = () if draft is None else draft.batch_times
        return BatchCosts.of(target.batch_times, times, len(cores.beside_draft), len(cores.every))

    def give_cores(without_drafts: bool) -> None:
        if draft is not None:
            is_lone = controller.mode == "none" and controller.num_live == 1
            cores.follow_load(without_drafts=without_drafts, is_lone=is_lone)

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
