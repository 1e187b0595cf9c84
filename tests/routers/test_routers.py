"""What each router escalates, and that its answer is a function of the step alone."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import SettingsError
from reason_spec.routers import StepFeatures, create_router, router_names
from reason_spec.settings import RouterSettings

FEATURES = StepFeatures.of_step(
    "a = 1",
    [log(0.9), log(0.2), log(0.6)],
    [False, False, True],
    question="How many?",
    text_before="",
    step_index=2,
    num_prefix_tokens=50,
)
logprobs = st.lists(st.floats(-30, 0), max_size=20)


def test_a_step_is_summarised_by_its_least_likely_tokens() -> None:
    assert (FEATURES.num_tokens, FEATURES.num_digits) == (3, 1)
    assert FEATURES.least_logprob == pytest.approx(log(0.2))
    assert FEATURES.least_digit_logprob == pytest.approx(log(0.6))
    assert FEATURES.mean_logprob == pytest.approx((log(0.9) + log(0.2) + log(0.6)) / 3)
    empty = StepFeatures.of_step("", [], [], question="", text_before="", step_index=0, num_prefix_tokens=0)
    assert (empty.mean_logprob, empty.least_digit_logprob) == (0.0, 0.0)


@given(logprobs, st.integers(0, 9), st.floats(0, 1), st.floats(0, 12))
def test_every_router_gives_a_chance_and_keeps_to_its_threshold(
    values: list[float], step_index: int, threshold: float, entropy: float
) -> None:
    digits = [index % 2 == 0 for index in range(len(values))]
    features = StepFeatures.of_step(
        "4 + 3 = 7",
        values,
        digits,
        question="What are 4 and 3?",
        text_before="",
        step_index=step_index,
        num_prefix_tokens=9,
        first_entropy=entropy,
    )
    for name in router_names():
        router = create_router(RouterSettings(name=name, threshold=threshold, any_pair=True))
        route = router.route(features)
        assert 0 <= route.score <= 1
        assert route.writer == ("target" if route.score > router.threshold else "draft")
        assert router.route(features) == route


def test_doubt_at_a_digit_escalates_and_doubt_at_a_word_beside_digits_does_not() -> None:
    router = create_router(RouterSettings(name="threshold", threshold=0.5))
    assert router.route(FEATURES).writer == "draft"
    doubted = replace(FEATURES, least_digit_logprob=log(0.4))
    assert router.route(doubted).writer == "target"
    without_digits = replace(FEATURES, num_digits=0, least_digit_logprob=0.0)
    assert router.route(without_digits).writer == "target"


@given(st.floats(0, 12), st.floats(0, 12))
def test_a_step_is_escalated_where_its_first_entropy_exceeds_tau(entropy: float, tau: float) -> None:
    router = create_router(RouterSettings(name="glimp", threshold=1 - exp(-tau)))
    if abs(entropy - tau) > 1e-6 or entropy == tau:
        writer = router.route(replace(FEATURES, first_entropy=entropy)).writer
        assert writer == ("target" if entropy > tau else "draft")


def test_without_an_entropy_there_is_no_route() -> None:
    with pytest.raises(ValueError, match="no entropy"):
        create_router(RouterSettings(name="glimp")).route(FEATURES)


@pytest.mark.parametrize("name", ["threshold", "learned"])
def test_a_step_without_probabilities_is_escalated(name: str) -> None:
    features = StepFeatures.of_step(
        "4", [], [], question="", text_before="", step_index=0, num_prefix_tokens=0
    )
    route = create_router(RouterSettings(name=name, any_pair=True)).route(features)
    assert (route.writer, route.score) == ("target", 1.0)


def test_chance_escalates_its_share_whatever_the_step_and_anew_with_another_seed() -> None:
    steps = [replace(FEATURES, key=f"step {index}") for index in range(4000)]
    routers = [create_router(RouterSettings(name="random", threshold=0.7, seed=seed)) for seed in (0, 1)]
    writers = [[router.route(step).writer for step in steps] for router in routers]
    for drawn in writers:
        assert drawn.count("target") / len(drawn) == pytest.approx(0.3, abs=0.03)
    assert writers[0] != writers[1]


def test_two_routers_always_say_the_same() -> None:
    assert create_router(RouterSettings(name="draft")).route(FEATURES).writer == "draft"
    assert create_router(RouterSettings(name="target")).route(FEATURES).writer == "target"


def test_an_unknown_router_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'nonsense'.*threshold"):
        create_router(RouterSettings(name="nonsense"))
