"""The budget of one answer, with and without a planner and the load."""

from __future__ import annotations

from reason_spec.control.answer_model import NOTHING_CACHED, CacheForecast
from reason_spec.control.budget import UNLIMITED, RequestedBudget
from reason_spec.control.controller import SpeculationController
from reason_spec.control.costs import BatchCosts, Costs, PassCost
from reason_spec.control.load_controller import LoadController
from reason_spec.control.planner import Planner
from reason_spec.engines.stats import PassTime
from reason_spec.events import Recorder
from reason_spec.settings import LoadControlSettings
from reason_spec.speculation.goodput import BatchTime
from reason_spec.types import Plan

PLANNER = Planner(
    Costs(PassCost(((1, 0.02), (64, 0.021))), draft_token=0.001), max_depth=4, max_draft_tokens=16
)
REQUESTED = RequestedBudget(2, 8)


class Fixed(Planner):
    """Plans the given answers one after another."""

    def __init__(self, *plans: Plan) -> None:
        super().__init__(PLANNER.costs, max_depth=4, max_draft_tokens=16)
        self.plans = iter(plans)

    def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
        return next(self.plans)


class Counting(Planner):
    def __init__(self) -> None:
        super().__init__(PLANNER.costs, max_depth=4, max_draft_tokens=16)
        self.num_learned = 0

    def learn(self, *_: object) -> None:
        self.num_learned += 1


def test_without_load_control_an_answer_may_speculate_whatever_its_strategy_does() -> None:
    with SpeculationController().admit(REQUESTED, planned_as="lookahead") as budget:
        assert (budget.depth, budget.num_draft_tokens) == UNLIMITED
        assert not budget.beside_others
        assert budget.plan(NOTHING_CACHED) is None
        budget.record_step(10)


def test_an_answer_is_planned_only_if_its_strategy_asks_for_it() -> None:
    controller = SpeculationController(planners={"lookahead": PLANNER})
    with controller.admit(REQUESTED, planned_as="lookahead") as budget:
        assert budget.plan(NOTHING_CACHED) == PLANNER.plan()
    with controller.admit(REQUESTED) as budget:
        assert budget.plan(NOTHING_CACHED) is None


def test_the_target_gets_all_cores_where_no_live_answer_has_work_for_the_draft_model() -> None:
    given: list[bool] = []
    planners = {"lookahead": Fixed(Plan(0, 0), Plan(2, 0), Plan(0, 0), Plan(0, 8))}
    controller = SpeculationController(None, planners, given.append)
    with controller.admit(REQUESTED, planned_as="lookahead") as first:
        first.plan(NOTHING_CACHED)
        with controller.admit(REQUESTED, planned_as="lookahead") as second:
            second.plan(NOTHING_CACHED)
    for _ in range(2):
        with controller.admit(REQUESTED, planned_as="lookahead") as budget:
            budget.plan(NOTHING_CACHED)
    assert given == [True, False, True, False]


def test_under_load_control_a_lone_answer_planned_without_the_draft_model_gets_all_cores() -> None:
    given: list[bool] = []
    shared, alone = (
        BatchTime([PassTime(size, seconds, 50) for size in (1, 2, 4)]) for seconds in (0.02, 0.01)
    )
    costs = BatchCosts(shared, alone, shared)
    load = LoadController(LoadControlSettings(), lambda: costs, given.append)
    controller = SpeculationController(load, {"lookahead": Fixed(Plan(0, 0), Plan(2, 0))})
    for all_cores in (True, False):
        with controller.admit(REQUESTED, planned_as="lookahead") as budget:
            assert given[-1] is False
            budget.plan(NOTHING_CACHED)
            assert given[-1] is all_cores


def test_the_load_bounds_an_answer_at_what_it_requests() -> None:
    load = LoadController(LoadControlSettings(at_most="tokens"), lambda: None)
    with SpeculationController(load).admit(REQUESTED) as budget:
        assert (load.num_live, budget.depth, budget.num_draft_tokens) == (1, 0, REQUESTED.num_draft_tokens)
    assert load.num_live == 0


def test_the_planner_learns_only_from_answers_that_nothing_else_bounded() -> None:
    planner, load = Counting(), LoadController(LoadControlSettings(), lambda: None)
    controller = SpeculationController(load, {"lookahead": planner})
    with controller.admit(REQUESTED, planned_as="lookahead") as budget:
        budget.record_answer(Recorder(), (), ())
        assert planner.num_learned == 1
        with controller.admit(REQUESTED, planned_as="lookahead"):
            pass
        budget.record_answer(Recorder(), (), ())
    assert planner.num_learned == 1


def test_answers_beside_others_are_no_trials_of_the_planner() -> None:
    asked: list[bool] = []

    class Asked(Fixed):
        def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
            asked.append(may_explore)
            return super().plan(cached)

    load = LoadController(LoadControlSettings(), lambda: None)
    controller = SpeculationController(load, {"lookahead": Asked(Plan(2, 8), Plan(2, 8))})
    with controller.admit(REQUESTED, planned_as="lookahead") as first:
        first.plan(NOTHING_CACHED)
        with controller.admit(REQUESTED, planned_as="lookahead") as second:
            second.plan(NOTHING_CACHED)
    assert asked == [True, False]
