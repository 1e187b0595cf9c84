"""The load gate: speculate as much as makes all live answers together faster, down to not at all.

What speculation gains for one answer it may take from the others: drafts fill passes that are full anyway,
and the draft model keeps a core from the target. Every round the gate compares three ways of writing, by
the goodput that is expected of each (`speculation.goodput`): steps ahead with token drafts, token drafts
alone, and the target alone on all cores. Expectations come from what passes take at this load, from how
often drafts were right, of each answer with all of them as its prior, and from how fast each way turned out
to be at such a load (SmartSpec, arXiv 2406.14066, has the token level of this).

Time, costs and outcomes are told to it; it starts nothing by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reason_spec.engines.stats import PassTime
from reason_spec.settings import LoadControlSettings, Speculation
from reason_spec.speculation.goodput import Allotment, BatchTime, Demand, Share, allot

Ways: TypeAlias = tuple[Speculation, ...]
WAYS: Ways = ("none", "tokens", "steps")
"""From the least to the most that is speculated."""

_AHEAD_OF_SHARE = 2
"""What may wait in multiples of what a pass should hold: while that is checked, as much is written."""
_ROUND_SECONDS = 0.25
"""Between two rounds, unless an answer begins or ends."""
_LEAST_SECONDS, _LEAST_SECONDS_EACH = 0.02, 0.0005
"""Between two rounds in any case, and for each live answer: many may begin at once, and all wait."""
_STEP_RATE, _TOKEN_RATE = 0.6, 0.9
_PRIOR_STEPS, _PRIOR_TOKENS = 4.0, 32.0
"""What the rate of all answers counts for beside an answer's own."""
_MEMORY = 0.98
_PRIOR_LONE, _MEMORY_OF_LONE = 4.0, 0.9
"""Times of one answer alone that nobody joined, assumed at first; what counts are the last ten or so."""
_MOST_JOINED = 0.25
"""Steps ahead are not begun where an answer alone is joined more often: leaving them costs what they gain."""
_WINDOW_SECONDS, _WINDOW_TOKENS = 2.0, 64
"""The least that an outcome is told by."""
_SETTLING_SECONDS = 0.3
"""Behind a change of the way, in which what is written belongs to neither."""
_MOST_BEGUN = 0.75
"""Share of the live answers that must be past their prompts for an outcome to count."""
_HALF_LIFE = 60.0
"""Seconds after which an outcome counts for half: what was slow once is tried again."""
_TRY_SECONDS, _TRY_FOR = 30.0, 4.0
"""After so long of writing, for so long, the target alone is tried where its speed at a load is not known."""
_TRY_LOAD, _TRY_SHARE = 4, 0.65
"""It is tried with so many live answers, where such a share of the present goodput is expected of it."""
_FASTER = 0.97
"""All cores are taken where a pass takes less than this share of its time on the others."""
_ASSUMED_OF_STEPS = math.log(0.55)
"""Steps ahead bring less than their chances: each is a request of its own, and what is lost was written."""
_LOST_IN_ALL_WAYS = math.log(0.8)
"""What is missing where tokens are drafted is taken to be lost between passes, in all ways, down to this."""
_KNOWN_SECONDS = 600.0
"""So long an outcome is remembered as one that was seen."""
MARGIN = 0.05
"""Relative gain in goodput that another mode must promise before the mode changes."""
_HOLD_SECONDS = 1.0
"""Least time between two changes of the mode; a change to the target alone is never held up."""
_CORRECTION_WEIGHT = 1.5
"""Seconds of outcomes that a prediction counts for."""


class LoadCosts(NamedTuple):
    """What passes take by tokens and requests.

    ``shared`` is the target beside a draft that has cores of its own, ``alone`` the target on all of them;
    the same object where there is nothing to share. ``draft`` is the draft model.
    """

    shared: BatchTime
    alone: BatchTime
    draft: BatchTime

    @classmethod
    def of(
        cls, target: Sequence[PassTime], draft: Sequence[PassTime], shared_threads: int, all_threads: int
    ) -> LoadCosts:
        """Take what engines tell. What was not measured on all cores counts as it is on the shared ones."""
        shared = BatchTime([one for one in target if one.num_threads == shared_threads])
        alone = BatchTime([one for one in target if one.num_threads == all_threads])
        return cls(shared, alone if alone.known else shared, BatchTime(draft))

    @property
    def known(self) -> bool:
        return self.shared.known


class RequestedBudget(NamedTuple):
    """What an answer would use if it were alone: steps ahead, and token drafts by the draft model."""

    depth: int = 0
    num_draft_tokens: int = 0


@dataclass(slots=True)
class _Rate:
    """A chance, from an assumed one and what was seen; old outcomes fade."""

    right: float
    count: float
    memory: float = _MEMORY

    def add(self, right: float, count: float) -> None:
        self.right = self.right * self.memory + right
        self.count = self.count * self.memory + count

    @property
    def value(self) -> float:
        return min(1.0, self.right / self.count) if self.count > 0 else 0.0


@dataclass(slots=True)
class _Outcomes:
    """How fast a way was against what was expected, in logarithms; it fades."""

    total: float = 0.0
    weight: float = 0.0
    at: float = 0.0

    def add(self, ratio: float, weight: float, now: float) -> None:
        faded = self._fade(now)
        self.total, self.weight, self.at = self.total * faded, self.weight * faded, now
        self.total += weight * math.log(min(max(ratio, 0.1), 10.0))
        self.weight += weight

    def log_ratio(self, now: float, assumed: float) -> float:
        """Return it now; ``assumed`` is what it is where nothing is known."""
        faded = self._fade(now)
        return (self.total * faded + _CORRECTION_WEIGHT * assumed) / (
            self.weight * faded + _CORRECTION_WEIGHT
        )

    def _fade(self, now: float) -> float:
        return float(0.5 ** (max(0.0, now - self.at) / _HALF_LIFE))


class SpeculationBudget:
    """One answer that is being written; what it may use changes from round to round."""

    def __init__(self, gate: LoadController, requested: RequestedBudget) -> None:
        self._gate = gate
        self.requested = requested
        self.share = Share(requested.depth, requested.num_draft_tokens)
        self.left_to_planner = True
        """Whether no other answer was live at any time, nor steps ahead held back for the next one."""
        self.begun = False
        """Whether words of it are there."""
        self._told_early = 0
        self._steps = _Rate(0.0, 0.0)
        self._tokens = _Rate(0.0, 0.0)

    @property
    def depth(self) -> int:
        """How many steps the draft may be ahead now."""
        self._gate.refresh()
        return self.share.depth

    @property
    def num_draft_tokens(self) -> int:
        """How many tokens the draft model may write ahead now; 0: it is to write none."""
        self._gate.refresh()
        return min(self.requested.num_draft_tokens, _AHEAD_OF_SHARE * self.share.num_draft_tokens)

    @property
    def beside_others(self) -> bool:
        """Whether other answers are live, so that its drafts take time of theirs."""
        return self._gate.num_live > 1

    def judged(self, accepted: bool) -> None:
        """Tell of a verdict about a drafted step."""
        self._steps.add(accepted, 1.0)
        self._gate.step_rate.add(accepted, 1.0)

    def checked(self, num_right: int, parted: bool) -> None:
        """Tell of drafted tokens that the target confirmed, and whether it went on otherwise behind them."""
        if num_right or parted:
            self._tokens.add(num_right, num_right + parted)
            self._gate.token_rate.add(num_right, num_right + parted)

    def certain(self, num_tokens: int) -> None:
        """Tell of certain tokens of a step that is not over yet; `wrote` does not count them again."""
        self._told_early += num_tokens
        self._count(num_tokens)

    def wrote(self, num_tokens: int) -> None:
        """Tell of a step that became final."""
        early = min(num_tokens, self._told_early)
        self._told_early -= early
        self._count(num_tokens - early)

    def _count(self, num_tokens: int) -> None:
        """Count certain tokens, but not the first: until they come the prompt is read, whatever the way."""
        if self.begun:
            self._gate.wrote(num_tokens)
        self.begun = True
        self._gate.refresh()

    def demand(self, way: Speculation) -> Demand:
        """Return what it could use under a way of writing."""
        own, shared = self._tokens, self._gate.token_rate.value
        token_rate = (own.right + _PRIOR_TOKENS * shared) / (own.count + _PRIOR_TOKENS)
        own, shared = self._steps, self._gate.step_rate.value
        step_rate = (own.right + _PRIOR_STEPS * shared) / (own.count + _PRIOR_STEPS)
        depth = self.requested.depth if way == "steps" else 0
        num_tokens = 0 if way == "none" else self.requested.num_draft_tokens
        return Demand(min(token_rate, 0.999), num_tokens, min(step_rate, 0.999), depth)


@dataclass(slots=True)
class _Window:
    """What was expected of a way and what was written, since ``began``."""

    began: float
    expected: float = 0.0
    requests: float = 0.0
    lasted: float = 0.0
    """Seconds that are counted."""
    written: int = 0
    counted: int = 0
    """Of ``written`` those of the counted seconds."""
    counted_to: float = 0.0


class LoadController:
    """Decides for all live answers of an accelerator; called from one event loop.

    Args:
        costs: tells what passes take now; None: not known, and nothing is held back.
        on_cores: told in every round whether the target is to have all cores, those of the draft included.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        settings: LoadControlSettings,
        costs: Callable[[], LoadCosts | None],
        on_cores: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        hold_seconds: float = _HOLD_SECONDS,
    ) -> None:
        self._settings = settings
        self._hold_seconds = hold_seconds
        self._costs = costs
        self._fitted: LoadCosts | None = None
        self._fitted_at = -math.inf
        self._on_cores = on_cores
        self._clock = clock
        self._live: list[SpeculationBudget] = []
        self.step_rate = _Rate(_STEP_RATE * 8, 8.0)
        self.token_rate = _Rate(_TOKEN_RATE * 64, 64.0)
        self._joined = _Rate(0.0, _PRIOR_LONE, _MEMORY_OF_LONE)
        """How often an answer that was alone was joined by another, before it ended."""
        self._outcomes: dict[tuple[Speculation, int], _Outcomes] = {}
        self.way: Speculation = settings.at_most
        """How answers are written now."""
        self.all_cores = False
        """Whether the target has the draft's cores as well: only where it writes alone, and is faster so."""
        self.num_changes = 0
        self.seconds: dict[Speculation, float] = dict.fromkeys(WAYS, 0.0)
        """How long answers were live in each way."""
        self._counted_to = clock()
        self._changed_at = -math.inf
        self._tried_until = -math.inf
        self._written_for = 0.0
        """Seconds that several answers were past their prompts and drafted for, since the last trial."""
        self._decided_at = -math.inf
        self._stale = False
        self._undisputed = True
        """Whether the way was the only one in the last round: it says nothing of what is better now."""
        self._expected: dict[Speculation, float] = {}
        self._predicted = 0.0
        self._window = _Window(clock())

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def knows(self) -> bool:
        """Whether it knows what passes cost, and so decides."""
        costs = self._costs_at(self._clock())
        return costs is not None and costs.known

    @property
    def expected(self) -> dict[Speculation, float]:
        """Tokens a second, over all live answers, that were expected of each way in the last round."""
        return dict(self._expected)

    @contextmanager
    def enter(self, requested: RequestedBudget) -> Iterator[SpeculationBudget]:
        """Count an answer as live for the block."""
        live = SpeculationBudget(self, requested)
        if not self._live:
            # What was idle time tells of nothing.
            self._counted_to = self._clock()
            self._window = _Window(self._counted_to, counted_to=self._counted_to)
        self._live.append(live)
        if len(self._live) > 1:
            for one in self._live:
                one.left_to_planner = False
            live.share = self._like_others(requested)
        self._stale = True
        if len(self._live) == 2:
            self._joined.add(1.0, 1.0)
        if len(self._live) <= 2:
            # Until now one answer had all there is; nobody is to begin like that beside it, nor the only one
            # where steps ahead are held back.
            self.decide()
        else:
            self.refresh()
        try:
            yield live
        finally:
            self._live.remove(live)
            # The others decide at their next words: often another answer has begun by then.
            self._stale = True
            if not self._live:
                self._joined.add(0.0, 1.0)
                self._measure(self._clock(), ends=True)

    def refresh(self) -> None:
        """Decide anew where the last round is some time ago, or an answer has begun or ended since."""
        passed = self._clock() - self._decided_at
        least = _LEAST_SECONDS + _LEAST_SECONDS_EACH * len(self._live)
        if passed >= (least if self._stale else _ROUND_SECONDS):
            self.decide()

    def _like_others(self, requested: RequestedBudget) -> Share:
        """Return what an answer may use until the next round: no more than any other."""
        others = [live.share for live in self._live[:-1]]
        depth = max(share.depth for share in others)
        num_draft_tokens = max(share.num_draft_tokens for share in others)
        return Share(min(requested.depth, depth), min(requested.num_draft_tokens, num_draft_tokens))

    def wrote(self, num_tokens: int) -> None:
        """Take tokens that became certain, of whatever answer."""
        self._window.written += num_tokens

    def decide(self) -> None:
        """Choose the way of writing, and what of it each live answer may use."""
        now = self._clock()
        self._decided_at, self._stale = now, False
        self._measure(now)
        if not self._live:
            return
        costs = self._costs_at(now)
        if costs is None or not costs.known:
            self._lift(self._settings.at_most)
            return
        allotments = {way: self._allot(way, costs) for way in self._open_ways()}
        self._expected = {
            way: allotted.goodput * math.exp(self._log_correction(way, now))
            for way, allotted in allotments.items()
        }
        self._change(self._choose(now), now)
        self._undisputed = len(allotments) == 1
        self._give_cores(costs)
        self._predicted = allotments[self.way].goodput
        if len(self._live) == 1 and self.way != "none":
            self._lift(self.way)
            return
        for live, share in zip(self._live, allotments[self.way].shares, strict=True):
            live.share = share

    def _costs_at(self, now: float) -> LoadCosts | None:
        """Return what passes take; means over many do not change between rounds that follow at once."""
        if self._fitted is None or not self._fitted.known or now - self._fitted_at >= _ROUND_SECONDS:
            self._fitted, self._fitted_at = self._costs(), now
        return self._fitted

    def _open_ways(self) -> Ways:
        """Return the ways there are: those that the settings allow and an answer has a use for."""
        most = WAYS.index(self._settings.at_most)
        if not any(live.requested.depth for live in self._live):
            most = min(most, WAYS.index("tokens"))
        if not any(live.requested.depth or live.requested.num_draft_tokens for live in self._live):
            most = 0
        if len(self._live) > 1:
            return WAYS[: most + 1]
        # How much of it one answer alone uses is the planner's business, and the settings'.
        [live] = self._live
        if WAYS[most] == "steps" and live.requested.num_draft_tokens and self._joined.value > _MOST_JOINED:
            live.left_to_planner = False
            most = WAYS.index("tokens")
        return WAYS[most : most + 1]

    def _allot(self, way: Speculation, costs: LoadCosts) -> Allotment:
        demands = [live.demand(way) for live in self._live]
        if way == "none":
            alone, shared = (allot(demands, time) for time in (costs.alone, costs.shared))
            return max(alone, shared, key=lambda allotted: allotted.goodput)
        num_drafting = sum(demand.max_tokens > 0 or demand.max_depth > 0 for demand in demands)
        draft_seconds = 0.0
        if num_drafting and costs.draft.known:
            draft_seconds = costs.draft.of_one(num_drafting, num_drafting) / num_drafting
        return allot(demands, costs.shared, draft_seconds=draft_seconds)

    def _choose(self, now: float) -> Speculation:
        """Return the best way, or the present one where the best is not clearly better."""
        best = max(self._expected, key=self._expected.__getitem__)
        if len(self._expected) == 1:
            return best
        if (now < self._tried_until and self._none_is_close(best)) or self._is_worth_a_try(best, now):
            return "none"
        if self._undisputed or self.way not in self._expected or best == self.way:
            return best
        present, margin = self._expected[self.way], 1.0 + MARGIN
        # Back to the target alone at once; to speculation, and between its ways, only after a while.
        if self._expected["none"] > present * margin:
            held = best == "none" or now - self._changed_at >= self._hold_seconds
            return best if held else "none"
        held = now - self._changed_at >= self._hold_seconds
        return best if held and self._expected[best] > present * margin else self.way

    def _is_worth_a_try(self, best: Speculation, now: float) -> bool:
        """Tell whether the target alone should be tried: an expectation that nobody checks may be wrong."""
        outcomes = self._outcomes.get(("none", round(math.log2(len(self._live)))), _Outcomes())
        unknown = outcomes.weight == 0.0 or now - outcomes.at > _KNOWN_SECONDS
        due = self._written_for >= _TRY_SECONDS and len(self._live) >= _TRY_LOAD
        tells = self._share_begun() >= _MOST_BEGUN and self._none_is_close(best)
        if self.way == "none" or not (unknown and due and tells):
            return False
        self._tried_until = now + _TRY_FOR
        self._written_for = 0.0
        return True

    def _none_is_close(self, best: Speculation) -> bool:
        """Tell whether the target alone may be the best: what its passes took so far does not rule it out."""
        return self._expected["none"] >= _TRY_SHARE * self._expected[best]

    def _change(self, way: Speculation, now: float) -> None:
        if way == self.way:
            return
        self._measure(now, ends=True)
        self.way = way
        if len(self._expected) > 1:
            # Where there is but one way nothing was decided that might be regretted.
            self.num_changes += 1
            self._changed_at = now
        self._window = _Window(now + _SETTLING_SECONDS, counted_to=now + _SETTLING_SECONDS)

    def _give_cores(self, costs: LoadCosts) -> None:
        load = len(self._live)
        alone, shared = (time.of_one(load, load) for time in (costs.alone, costs.shared))
        self.all_cores = self.way == "none" and alone < shared * (1.0 if self.all_cores else _FASTER)
        self._on_cores(self.all_cores)

    def _lift(self, way: Speculation) -> None:
        """Let every answer use what it would alone, as far as the way allows it."""
        for live in self._live:
            live.share = Share(
                live.requested.depth if way == "steps" else 0,
                0 if way == "none" else live.requested.num_draft_tokens,
            )
        if way != self.way:
            self._change(way, self._clock())

    # --- how it turned out ---------------------------------------------------------------------------

    def _measure(self, now: float, *, ends: bool = False) -> None:
        """Count what was expected up to now; learn how it turned out where there is enough of it."""
        if self._live:
            self.seconds[self.way] += max(0.0, now - self._counted_to)
        self._counted_to = now
        window = self._window
        if now < window.began:
            window.written = 0
            return
        seconds = max(0.0, now - max(window.counted_to, window.began))
        window.counted_to = now
        begun = self._share_begun()
        if begun < _MOST_BEGUN:
            # Passes are full of prompts, which tells nothing of the way.
            window.written = window.counted
        else:
            window.expected += self._predicted * begun * seconds
            window.requests += len(self._live) * seconds
            window.lasted += seconds
            if self.way != "none" and len(self._live) >= _TRY_LOAD:
                self._written_for += seconds
            window.counted = window.written
        enough = window.lasted >= _WINDOW_SECONDS and window.written >= _WINDOW_TOKENS
        if enough and window.expected > 0:
            load = max(1.0, window.requests / window.lasted)
            outcomes = self._outcomes.setdefault((self.way, round(math.log2(load))), _Outcomes())
            outcomes.add(window.written / window.expected, min(window.lasted, 5.0), now)
        if enough or ends:
            self._window = _Window(now, counted_to=now)

    def _share_begun(self) -> float:
        """Return the share of the live answers that are past their prompts."""
        return sum(live.begun for live in self._live) / max(1, len(self._live))

    def _log_correction(self, way: Speculation, now: float) -> float:
        """Return how fast a way turned out against what was expected, in logarithms.

        It is that of such a load, or of the nearest there is.
        """
        load = round(math.log2(max(1, len(self._live))))
        seen = {bucket: one for (name, bucket), one in self._outcomes.items() if name == way}
        assumed = 0.0
        if way == "steps":
            # What tokens turned out to bring says as much of the tokens that are drafted beside steps.
            assumed = _ASSUMED_OF_STEPS + self._log_correction("tokens", now)
        elif way == "none":
            assumed = max(_LOST_IN_ALL_WAYS, self._log_correction("tokens", now))
        if not seen:
            return assumed
        nearest = min(seen, key=lambda bucket: (abs(bucket - load), bucket))
        beside = seen[nearest].log_ratio(now, assumed) - assumed
        return assumed + beside / (1 + abs(nearest - load))
