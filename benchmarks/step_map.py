"""Map where steps ahead pay beside draft tokens, and how near the planner comes to the better choice.

    python benchmarks/step_map.py [--slopes 0 0.02 0.06] [--answers 2] [--plot FILE] [--json [FILE]]

The strategies, the engines' loops and the planner are the real ones. The models are scripts that cost what
each point of the map says, in virtual time: T(n) = 1 + slope (n - 1) for a pass of n tokens, a draft token
takes c of a target token, and drafted tokens and steps are right with the chances alpha_token and alpha_step,
drawn independently. What no point has: work on the same cores, and texts whose difficulty varies.

Each point holds the fastest of several fixed settings with draft tokens alone (``tokens``) and with steps
ahead (``both``), the planner after it has seen ``--warm-up`` answers, and what formulas and simulation of
``reason-spec plan`` expect. All are tokens a second over the target alone. ``pays_from`` is the least
alpha_step at which steps pay by the formulas.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar, Final

from arms import Ours, settings_of, write_rows
from models import Task
from virtual_clock import run_in_virtual_time

from reason_spec.accelerator import Accelerator
from reason_spec.control.constants import PLANNER_CONSTANTS
from reason_spec.control.costs import PassCost
from reason_spec.control.planner import LONGEST_WAIT
from reason_spec.engines.scripted import DEFAULT_PATTERN, ScriptedEngine, ScriptedTokenizer
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Workload, expected_split, steps_pay_from
from reason_spec.types import LossClass, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

PASS_SECONDS: Final = 0.02
"""T(1); all results are ratios."""
NUM_STEPS: Final = 12
STEP_TOKENS: Final = (12, 28)
"""Shortest and longest step."""
DRAFTS, DEPTHS = (2, 4, 8), (1, 3)
SIMULATED_STEPS: Final = 4_000
EXPLORED: Final = ceil(PLANNER_CONSTANTS.explore_every * LONGEST_WAIT)
"""Answers within which a layer that was left out is tried."""
FLAGS: Final = {"suffix.use": "none", "load_control.use": "off", "strategy.token_drafter": "none"}


@dataclass(frozen=True, slots=True)
class Point:
    """Costs and chances of one pair of models."""

    slope: float
    c: float
    alpha_token: float
    alpha_step: float

    def pass_ratio(self, num_tokens: int) -> float:
        return 1.0 + self.slope * (num_tokens - 1)

    def workload(self) -> Workload:
        low, high = STEP_TOKENS
        spread = ((high - low + 1) ** 2 - 1) / 12
        return Workload(
            alpha_step=self.alpha_step,
            c_step=self.c,
            alpha_token=self.alpha_token,
            c_token=0.0,
            step_tokens=(low + high) / 2,
            step_tokens_std=spread**0.5,
            answer_steps=float(NUM_STEPS),
            pass_cost=PassCost(((1, 1.0), (129, self.pass_ratio(129)))),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Speeds of a point over the target alone; ``planned_over_best`` is over the faster of both choices."""

    slope: float
    c: float
    alpha_token: float
    alpha_step: float
    tokens: float
    both: float
    planned: float
    planned_over_best: float
    best_drafts: int
    best_depth: int
    expected_tokens: float
    expected_both: float
    simulated_tokens: float
    simulated_both: float
    pays_from: float | None


def drawn(*key: object) -> float:
    """Return a number from 0 to 1 that the key determines."""
    return zlib.crc32(repr(key).encode()) / 2**32


class Script:
    """Continues a text by the place that it has reached; a draft's word is another one by chance."""

    def __init__(self, right: float = 1.0) -> None:
        self._right = right
        self._words = ScriptedTokenizer(DEFAULT_PATTERN)

    def __call__(self, text: str, sampling: Sampling) -> str:
        question, _, body = text.partition("\n")
        *told, begun = body.split("\n\n")
        num_begun = len(self._words.encode(begun))
        if len(told) >= NUM_STEPS:
            return ""
        first, *later = (self._step(question, index) for index in range(len(told), NUM_STEPS))
        return "".join(first[num_begun:]) + "".join(itertools.chain.from_iterable(later))

    def _step(self, question: str, index: int) -> list[str]:
        low, high = STEP_TOKENS
        length = low + int(drawn(question, index) * (high - low + 1))
        return [*(self._word(question, index, at) for at in range(length - 1)), "\n\n"]

    def _word(self, question: str, index: int, at: int) -> str:
        number = zlib.crc32(repr((question, index, at)).encode())
        word = "".join(chr(97 + number // 26**place % 26) for place in range(5))
        if drawn(question, index, at, "drafted") >= self._right:
            word = "un" + word
        return word if at == 0 else f" {word}"


class ByChance(Verifier):
    """Accepts a drafted step by chance, whatever it says."""

    name = "chance"
    loss_class: LossClass = "verified"

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        accepted = drawn(target.text, "accepted") < self._rate
        return Verdict("accept" if accepted else "reject", float(accepted))


class TimedEngine(ScriptedEngine):
    """A scripted engine whose times a planner may use."""

    has_costs: ClassVar[bool] = True


class Bench:
    """The models of one point, and all that is timed with them."""

    def __init__(self, point: Point, num_answers: int, warm_up: int) -> None:
        self._point = point
        self._tasks = [Task(f"Problem {number}", lambda _: True) for number in range(num_answers)]
        self._warm_up = warm_up

    async def row(self) -> Row:
        point = self._point
        settings = settings_of(FLAGS, "lookahead", 0.0, 4096)
        target = TimedEngine(
            "target", Script(), seconds_per_pass=lambda size: PASS_SECONDS * point.pass_ratio(size)
        )
        draft = TimedEngine("draft", Script(point.alpha_token), seconds_per_pass=PASS_SECONDS * point.c)
        verifier = ByChance(point.alpha_step)
        accelerator = Accelerator(settings, target, draft, verifier, ("speculative", "lookahead"))
        async with accelerator:
            self._ours = Ours(accelerator, clock=asyncio.get_running_loop().time)
            tokens = {num: await self._speed("speculative", num, 0) for num in DRAFTS}
            both = {
                (depth, num): await self._speed("lookahead", num, depth) for depth in DEPTHS for num in DRAFTS
            }
            planned = await self._speed("lookahead", max(DRAFTS), max(DEPTHS), planned=True)
        return self._row(tokens, both, planned)

    async def _speed(self, strategy: str, num_drafts: int, depth: int, *, planned: bool = False) -> float:
        """Return the speed over the target alone of a setting, after a warm-up where it is planned."""
        flags = {
            **FLAGS,
            "strategy.depth": depth,
            "strategy.num_draft_tokens": num_drafts,
            "strategy.planner": planned,
        }
        settings = settings_of(flags, strategy, 0.0, 4096)
        for number in range(self._warm_up if planned else 0):
            await self._ours.solve(settings, Task(f"Warm-up {number}", lambda _: True), number)
        # The planner's trials of other settings come at intervals, and a whole one is measured.
        rounds = ceil(EXPLORED / len(self._tasks)) if planned else 1
        runs = [
            await self._ours.solve(settings, task, index)
            for _ in range(rounds)
            for index, task in enumerate(self._tasks)
        ]
        num_tokens, seconds = sum(run.num_tokens for run in runs), sum(run.seconds for run in runs)
        return num_tokens * PASS_SECONDS / seconds

    def _row(self, tokens: dict[int, float], both: dict[tuple[int, int], float], planned: float) -> Row:
        workload = self._point.workload()
        depth, num_drafts = max(both, key=lambda split: both[split])

        def simulated(splits: Iterable[tuple[int, int]]) -> float:
            """Return the speed of the fastest split in the simulation."""
            return max(
                simulate(workload, Scheme(depth, num_drafts=num), num_steps=SIMULATED_STEPS)
                for depth, num in splits
            )

        best = max(*tokens.values(), *both.values())
        return Row(
            **asdict(self._point),
            tokens=max(tokens.values()),
            both=both[depth, num_drafts],
            planned=planned,
            planned_over_best=planned / best,
            best_drafts=num_drafts,
            best_depth=depth,
            expected_tokens=max(expected_split(workload, 0, num).speedup for num in DRAFTS),
            expected_both=max(expected_split(workload, *split).speedup for split in both),
            simulated_tokens=simulated((0, num) for num in DRAFTS),
            simulated_both=simulated(both),
            pays_from=steps_pay_from(workload, max(DEPTHS), max(DRAFTS)),
        )


def points_of(options: argparse.Namespace) -> Iterator[Point]:
    yield from itertools.starmap(
        Point, itertools.product(options.slopes, options.costs, options.alpha_token, options.alpha_step)
    )


def measure(options: argparse.Namespace) -> list[Row]:
    points = list(points_of(options))
    rows: list[Row] = []
    for number, point in enumerate(points, start=1):
        rows.append(run_in_virtual_time(Bench(point, options.answers, options.warm_up).row()))
        sys.stderr.write(f"\r{number} of {len(points)} points")
    sys.stderr.write("\n")
    return rows


def print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for (
        heading
    ) in "slope|c|α token|α step|tokens|both|gain|formula|simulated|planned|of best|pays from".split("|"):
        table.add_column(heading, justify="right")
    for row in rows:
        gains = (
            row.both / row.tokens,
            row.expected_both / row.expected_tokens,
            row.simulated_both / row.simulated_tokens,
        )
        point = (row.slope, row.c, row.alpha_token, row.alpha_step)
        table.add_row(
            *(f"{value:g}" for value in point),
            *(f"{value:.2f}" for value in (row.tokens, row.both, *gains, row.planned, row.planned_over_best)),
            "never" if row.pays_from is None else f"{row.pays_from:.2f}",
        )
    ratios = [row.planned_over_best for row in rows]
    near = sum(ratio >= 0.95 for ratio in ratios)
    console = Console()
    console.print(table)
    console.print(
        f"Planner over the better choice: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}; "
        f"within 5 % at {near} of {len(rows)} points."
    )


def plot(rows: Sequence[Row], file: Path) -> None:
    """Draw the gain of steps over alpha_step, one panel for each slope and c."""
    import matplotlib.pyplot as plt

    slopes, costs = (sorted({getattr(row, name) for row in rows}) for name in ("slope", "c"))
    figure, axes = plt.subplots(
        len(costs), len(slopes), figsize=(3.4 * len(slopes), 2.8 * len(costs)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for (place, c), (column, slope) in itertools.product(enumerate(costs), enumerate(slopes)):
        axis = axes[place][column]
        for alpha_token in sorted({row.alpha_token for row in rows}):
            chosen = [row for row in rows if (row.c, row.slope, row.alpha_token) == (c, slope, alpha_token)]
            x = [row.alpha_step for row in chosen]
            (line,) = axis.plot(
                x, [row.both / row.tokens for row in chosen], "o-", label=f"alpha_token {alpha_token:g}"
            )
            simulated = [row.simulated_both / row.simulated_tokens for row in chosen]
            axis.plot(x, simulated, ":", color=line.get_color())
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set_title(f"T(n) = 1 + {slope:g} (n - 1), c = {c:g}", fontsize=9)
        axis.set_xlabel("alpha_step")
    axes[0][0].set_ylabel("both levels over tokens")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slopes", type=float, nargs="+", default=[0.0, 0.02, 0.06], help="of T(n)")
    parser.add_argument("--costs", type=float, nargs="+", default=[0.05, 0.15], help="c")
    parser.add_argument("--alpha-token", type=float, nargs="+", default=[0.4, 0.8])
    parser.add_argument("--alpha-step", type=float, nargs="+", default=[0.2, 0.5, 0.8])
    parser.add_argument("--answers", type=int, default=2, help="answers of each setting")
    parser.add_argument("--warm-up", type=int, default=16, help="answers that the planner learns from before")
    parser.add_argument("--plot", type=Path, help="draw the map into this picture")
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path("-"), help="write JSON, to a file if named"
    )
    options = parser.parse_args()
    rows = measure(options)
    write_rows(rows, options.json, print_table)
    if options.plot is not None:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
