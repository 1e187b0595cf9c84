"""Chances as they turned out: of drafts from earlier texts, and of hints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.torch.sequence_drafter import DraftRates
from reason_spec.speculation.draft_calibration import DraftCalibration, HintRate, LookupRate, ModelDraftRates
from reason_spec.suffix.base import Proposal

CHANCES = st.floats(0.0, 1.0)


def chain(*chances: float) -> Proposal:
    return Proposal(tuple(range(len(chances))), tuple(range(-1, len(chances) - 1)), chances, 4)


@given(CHANCES, st.lists(st.tuples(CHANCES, st.booleans()), max_size=30))
def test_a_corrected_chance_is_a_chance(chance: float, drafts: list[tuple[float, bool]]) -> None:
    calibration = DraftCalibration()
    for given_chance, right in drafts:
        calibration.learn(chain(given_chance), [0 if right else 9])
    assert 0.0 <= calibration.corrected(chance) <= 1.0


def test_chances_are_taken_as_given_until_something_is_known() -> None:
    calibration = DraftCalibration()
    for chance in (0.05, 0.3, 0.5, 0.72, 0.95):
        assert abs(calibration.corrected(chance) - chance) < 1e-9


def test_chances_move_to_what_became_of_such_drafts() -> None:
    calibration = DraftCalibration()
    for _ in range(50):
        calibration.learn(chain(0.35), [9])
        calibration.learn(chain(0.65), [0])
    assert calibration.corrected(0.35) < 0.1
    assert calibration.corrected(0.65) > 0.9


def test_behind_a_wrong_token_all_are_wrong_and_behind_the_end_nothing_is_known() -> None:
    parted, cut = DraftCalibration(), DraftCalibration()
    for _ in range(50):
        parted.learn(chain(0.95, 0.75, 0.55), [0, 9])
        cut.learn(chain(0.95, 0.75, 0.55), [0])
    assert parted.corrected(0.95) > 0.9
    assert parted.corrected(0.75) < 0.1
    assert parted.corrected(0.55) < 0.1
    assert abs(cut.corrected(0.75) - 0.75) < 0.05


def test_the_tokens_of_one_draft_do_not_count_as_many() -> None:
    few, many = DraftCalibration(), DraftCalibration()
    few.learn(chain(0.35), [9])
    many.learn(chain(*[0.35] * 30), [9])
    assert few.corrected(0.35) == many.corrected(0.35)


def test_a_hint_is_as_likely_as_hints_were() -> None:
    good, bad = HintRate(), HintRate()
    for _ in range(50):
        good.learn(range(16), (*range(16), 5))
        bad.learn(range(16), (0, 1, 9))
    assert good.chance(16) > 0.9
    assert bad.chance(16) < 0.01
    assert good.chance(0) == bad.chance(0) == 1.0


def test_what_is_not_checked_of_a_hint_does_not_count_as_wrong() -> None:
    rate = HintRate()
    before = rate.chance(1)
    for _ in range(20):
        rate.learn(range(16), (0, 1))
        rate.learn((), (3,))
    assert rate.chance(1) > before


def test_a_models_drafts_that_are_refused_have_a_low_chance_of_a_next_one() -> None:
    refused, accepted = ModelDraftRates(), ModelDraftRates()
    drafted = Proposal((1, 2), (-1, 0), (0.9, 0.8))
    for _ in range(60):
        refused.learn(drafted, (7,))
        accepted.learn(drafted, (1, 2, 3))
    assert refused.chance_of_next(Proposal()) < 0.3 < 0.9 < accepted.chance_of_next(Proposal())
    assert refused.chance_of_next(drafted) < accepted.chance_of_next(drafted)
    assert accepted.chance_of_next(drafted) <= accepted.chance_of_next(Proposal())


def test_a_models_draft_gains_little_beside_a_lookup_that_is_right() -> None:
    drafted = Proposal((1,), (-1,), (0.9,))
    right, wrong = DraftRates(9), DraftRates(9)
    for _ in range(60):
        right.looked_up.learn((1, 2), (1, 2, 3))
        wrong.looked_up.learn((7, 8), (1, 2, 3))
    alone = right.gain_of_next(drafted)
    assert right.gain_of_next(drafted, 2) < 0.3 * alone
    assert wrong.gain_of_next(drafted, 2) > 0.7 * alone
    # The lookup ends where the next token would be.
    assert right.gain_of_next(drafted, 1) == alone


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_the_rate_of_a_lookup_is_that_of_its_outcomes(outcomes: list[tuple[int, int]]) -> None:
    rate, before = LookupRate(), LookupRate()
    for length, num_right in outcomes:
        rate.learn(tuple(range(length)), (*range(min(num_right, length)), -1, -1))
    chances = [rate.chance(length) for length in range(1, 7)]
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)
    if all(num_right == 0 for _, num_right in outcomes):
        assert chances[0] < before.chance(1)
    if all(num_right >= length for length, num_right in outcomes):
        assert chances[0] > before.chance(1)


def test_the_rate_of_the_next_token_knows_the_length_of_the_text() -> None:
    rates = ModelDraftRates()
    drafted = Proposal((1,), (-1,), (0.9,))
    assert rates.chance_of(Proposal()) == 1.0
    for _ in range(60):
        rates.learn(drafted, (1,), text_length=100)
        rates.learn(drafted, (2,), text_length=2000)
    short, long = (rates.chance_of_next(Proposal(), length) for length in (120, 1500))
    assert short > 0.8 > 0.4 > long
    assert long < rates.chance_of_next(Proposal(), 50_000) < short, "unseen lengths have the rate of all"
