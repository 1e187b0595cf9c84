"""Time the load controller against the target alone and against fixed settings, at one to many answers at
once.

    python benchmarks/load.py [--engine vllm|torch] [--models real --draft FOLDER] [--padded LAYERS]
        [--loads 1 4 16 64] [--repeats 3] [--poisson 0.3 0.8] [--poisson-own 0.5 0.8 1 1.2]
        [--fixed tokens depth-2 depth-4] [--runs FILE] [--json [FILE]]

A closed loop keeps so many answers under way until all of its questions are answered: four for each of those
at once, so that its end, where fewer and fewer are left, is a small part; ``live`` is the number under way on
average. With ``--poisson`` they arrive by themselves, at these shares of what the target alone gets done at
the largest load, and with ``--poisson-own`` at shares of what the controller gets done there. For each load
the rows take turns on the same questions in an order shuffled with the seed, and prefix caches are emptied
before each.

``alone`` is the target without drafts on all cores, those of the draft among them, ``alone-shared`` on those
that a draft leaves it; both in an engine of their own, which has none of our parts that draft. The faster of
them at a load is what the others are compared with. All other rows share two engines. ``controller`` is the
default strategy with the load controller, which goes on learning from run to run as a server's does; fixed
rows have neither controller nor planner. ``tokens`` drafts tokens with the draft model, ``depth-N`` goes N
steps ahead as well.

``speed-up`` is the ratio of tokens a second (closed loop) or of seconds a token of an answer, waiting
included (Poisson): the median over repeats, with the lowest and the highest. With ``--runs`` every timed run
is kept in a file, and what is there is not run again. Stop other work first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from arms import write_rows
from load_rows import BASELINES, CONTROLLER, Row, Run, print_rows, rows_of
from models import Task, add_models_arguments, model_folder, models_of
from padding import pad

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.control.load_controller import LoadController
from reason_spec.settings import Settings, load_settings

_WARM_UP = 4
_FEWEST_ANSWERS = 16
_NUM_QUESTIONS = 4096


class Capacity(NamedTuple):
    """Answers that an arm gets done at the largest load."""

    arm: str
    answers_per_s: float


class Bench:
    """The engines: one target for the baselines, and a pair that all other arms share."""

    def __init__(
        self,
        baseline: Accelerator,
        accelerator: Accelerator,
        options: argparse.Namespace,
        questions: Sequence[Task],
    ) -> None:
        self.baseline = baseline
        self.accelerator = accelerator
        self.options = options
        self._controller: LoadController | None = accelerator.load_controller
        self._base: Settings = accelerator.settings
        self._generator = accelerator.generator
        self._seconds_before: dict[Any, float] = {}
        self._changes_before = 0
        self._questions = questions

    async def prepare(self, arm: str) -> None:
        """Make the engines this arm's: settings, cores, nothing in the caches."""
        if arm in BASELINES:
            self._generator = self.baseline.generator
            await self._generator.prepare()
            # What `prepare` gives it was measured with one answer at a time.
            cores = self.baseline.bundle.cores
            await cores.use(cores.every if arm == "alone" else self.accelerator.bundle.cores.beside_draft)
            return
        strategy = self._base.strategy
        name = "speculative" if arm == "tokens" else "lookahead"
        fixed: dict[str, Any] = {"name": name, "planner": arm == CONTROLLER}
        if arm.startswith("depth-"):
            fixed["depth"] = int(arm.removeprefix("depth-"))
        settings = self._base.model_copy(update={"strategy": strategy.model_copy(update=fixed)})
        controller = self._controller if arm == CONTROLLER else None
        control = replace(self.accelerator.generator.control, load=controller)
        self._generator = replace(self.accelerator.generator, settings=settings, control=control)
        await self._generator.prepare()
        if controller is not None:
            self._changes_before = controller.num_mode_changes
            self._seconds_before = dict(controller.seconds_in_mode)

    async def closed_loop(self, arm: str, load: int, repeat: int, num_answers: int) -> Run:
        await self.prepare(arm)
        waiting = list(enumerate(self._chosen(repeat, num_answers)))
        answers: list[tuple[Solution, float]] = []

        async def keep_answering() -> None:
            while waiting:
                index, question = waiting.pop(0)
                answers.append(await self._answer(index, question, time.perf_counter()))

        started = time.perf_counter()
        await asyncio.gather(*(keep_answering() for _ in range(load)))
        return self._run(arm, load, repeat, time.perf_counter() - started, answers)

    async def arrivals(
        self, arm: str, share: float, capacity: Capacity, repeat: int, num_answers: int
    ) -> Run:
        await self.prepare(arm)
        rate = share * capacity.answers_per_s
        rng = random.Random(f"{self.options.seed} {share} {capacity.arm} {repeat}")
        answering = []
        started = due = time.perf_counter()
        for index, question in enumerate(self._chosen(repeat, num_answers)):
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answering.append(asyncio.create_task(self._answer(index, question, due)))
        answers = [await one for one in answering]
        run = self._run(arm, 0, repeat, time.perf_counter() - started, answers)
        return replace(run, share=share, capacity_of=capacity.arm)

    def _chosen(self, repeat: int, number: int) -> list[Task]:
        """Return the next questions of a repeat; where there are too few they come again."""
        start = (repeat + 1) * number
        return [self._questions[place % len(self._questions)] for place in range(start, start + number)]

    async def _answer(self, index: int, question: Task, since: float) -> tuple[Solution, float]:
        generator = self._generator
        solution = await generator.answer(generator.request(question.question, problem=index))
        return solution, time.perf_counter() - since

    def _run(
        self,
        arm: str,
        load: int,
        repeat: int,
        seconds: float,
        answers: Sequence[tuple[Solution, float]],
    ) -> Run:
        num_tokens = sum(solution.num_tokens for solution, _ in answers)
        per_token = statistics.fmean(took / max(1, solution.num_tokens) for solution, took in answers)
        live = sum(took for _, took in answers) / seconds
        controller = None if arm in BASELINES else self._generator.control.load
        mode, changes = "-", 0
        if controller is not None:
            changes = controller.num_mode_changes - self._changes_before
            spent = {one: now - self._seconds_before[one] for one, now in controller.seconds_in_mode.items()}
            mode = ", ".join(
                f"{one} {part / sum(spent.values()):.0%}" for one, part in spent.items() if part > 0
            )
        return Run(arm, load, None, repeat, seconds, num_tokens, len(answers), per_token, mode, changes, live)


async def time_runs(bench: Bench, arms: Sequence[str], options: argparse.Namespace) -> list[Run]:
    """Time every arm at every load, all of one repeat before the next, and return these runs.

    The file of kept runs may hold those of other arms, loads and repeats.
    """
    done = {run.key: run for run in _kept(options.runs)}
    asked: list[tuple[str, int, float | None, str | None, int]] = []
    rng = random.Random(options.seed)
    arriving = [("alone", share) for share in options.poisson]
    if CONTROLLER in arms:
        arriving += [(CONTROLLER, share) for share in options.poisson_own]
    left = options.repeats * len(arms) * (len(options.loads) + len(arriving))
    for arm in arms:
        await bench.closed_loop(arm, _WARM_UP, -1, _WARM_UP)
    started, num_timed = time.perf_counter(), 0

    def note(run: Run) -> None:
        nonlocal num_timed
        num_timed += 1
        done[run.key] = run
        if options.runs is not None:
            with options.runs.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**asdict(run), "with": _identity(options)}) + "\n")

    def report(what: str) -> None:
        rest = (time.perf_counter() - started) / num_timed * left if num_timed else 0.0
        sys.stderr.write(f"\r\033[K{what}; {left} runs left, about {rest / 60:.0f} min ")
        sys.stderr.flush()

    for repeat in range(options.repeats):
        for load in options.loads:
            number = max(_FEWEST_ANSWERS, round(options.answers * load))
            for arm in rng.sample(arms, len(arms)):
                report(f"repeat {repeat + 1}, {load} at once: {arm}")
                asked.append((arm, load, None, None, repeat))
                if asked[-1] not in done:
                    note(await bench.closed_loop(arm, load, repeat, number))
                left -= 1
        for of, share in arriving:
            capacity = _capacity(list(done.values()), max(options.loads), of)
            for arm in rng.sample(arms, len(arms)):
                report(f"repeat {repeat + 1}, arrivals at {share:g} of {of}: {arm}")
                asked.append((arm, 0, share, capacity.arm, repeat))
                if asked[-1] not in done:
                    note(await bench.arrivals(arm, share, capacity, repeat, options.arrivals))
                left -= 1
    sys.stderr.write("\n")
    return [done[key] for key in asked]


def _identity(options: argparse.Namespace) -> str:
    """Return what has to be equal for runs to be of one measurement."""
    names = ["engine", "padded", "eager", "verifier", "max_tokens", "answers", "arrivals", "seed"]
    names += ["models", "target", "draft"]
    return json.dumps({name: getattr(options, name) for name in names}, sort_keys=True)


def _kept(file: Path | None) -> list[Run]:
    if file is None or not file.exists():
        return []
    return [Run(**{k: v for k, v in record.items() if k != "with"}) for record in _records(file)]


def _records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _capacity(runs: Sequence[Run], load: int, of: str) -> Capacity:
    """Return the capacity of the target alone, the faster of the baselines, or of another arm.

    It is that of the first repeat.
    """
    named = BASELINES if of in BASELINES else (of,)
    own = [run for run in runs if run.arm in named and run.load == load and run.repeat == 0]
    return Capacity(of, max(run.num_answers / run.seconds for run in own))


async def measure(options: argparse.Namespace) -> list[Row]:
    models = models_of(options)
    arms = models.usable([*BASELINES, "controller", *options.fixed], lambda arm: arm != "alone")
    async with AsyncExitStack() as stack:
        if options.padded:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "padded"
            pad(model_folder("target", models.target), options.padded, folder)
            models = replace(models, target=str(folder))
        flags: dict[str, Any] = {
            **models.flags,
            "target.kind": options.engine,
            "draft.kind": options.engine,
            "target.start_timeout": 1200,
            "draft.start_timeout": 1200,
            "verifier.name": options.verifier,
            "sampling.max_tokens": options.max_tokens,
        }
        if options.engine == "vllm":
            shared = {"enforce_eager": options.eager}
            flags |= {
                "target.vllm.arguments": shared,
                "draft.vllm.arguments": shared,
                "draft.vllm.token_method": "none",
            }
        drafting = () if models.draft is None else ("lookahead", "speculative")
        alone = {"strategy.name": "autoregressive", "load_control.use": "off"}
        if options.engine == "vllm":
            alone["target.vllm.token_method"] = "none"
        baseline = Accelerator.from_settings(
            load_settings(flags=flags | alone), strategies=("autoregressive",)
        )
        made = Accelerator.from_settings(load_settings(flags=flags), strategies=("autoregressive", *drafting))
        started = time.perf_counter()
        sys.stderr.write("starting the engines ...")
        sys.stderr.flush()
        await stack.enter_async_context(baseline)
        await stack.enter_async_context(made)
        sys.stderr.write(f"\rengines started in {time.perf_counter() - started:.0f} s\n")
        bench = Bench(baseline, made, options, models.tasks(_NUM_QUESTIONS, options.seed))
        runs = await time_runs(bench, arms, options)
    return rows_of(runs, arms)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add_models_arguments(parser)
    add("--engine", choices=("vllm", "torch"), default="vllm")
    padded_help = "demo: make the target so deep; 0: not (default: 48)"
    add("--padded", type=int, metavar="LAYERS", help=padded_help)
    add("--eager", action="store_true", help="vllm: do not compile: slower, but starts sooner")
    add("--loads", type=int, nargs="+", default=[1, 4, 16, 64], help="answers at once")
    add("--poisson", type=float, nargs="*", default=[0.3, 0.8], help="shares of the target's capacity")
    own_help = "shares of the controller's capacity"
    add("--poisson-own", type=float, nargs="*", default=[0.5, 0.8, 1.0, 1.2], help=own_help)
    add("--fixed", nargs="+", default=["tokens", "depth-2", "depth-4"], help="rows without the controller")
    add("--repeats", type=int, default=3)
    add("--answers", type=float, default=4, help="answers of a run for each of those at once")
    add("--arrivals", type=int, default=96, help="answers of a run with arrivals")
    add("--max-tokens", type=int, default=256, help="most tokens of an answer")
    add("--verifier", default="semantic")
    add("--seed", type=int, default=0)
    add("--runs", type=Path, help="keep timed runs in this file; those that are there are not run again")
    json_help = "write the rows to this file, or print them"
    add("--json", type=Path, nargs="?", const=Path("-"), help=json_help)
    options = parser.parse_args()
    if options.padded is None:
        options.padded = 0 if options.models == "real" else 48
    for arm in options.fixed:
        if arm != "tokens" and not arm.removeprefix("depth-").isdigit():
            parser.error(f"--fixed knows tokens and depth-N, not {arm}")
    if min([*options.loads, *options.poisson, *options.poisson_own, options.repeats, options.arrivals]) <= 0:
        parser.error("--loads, --repeats, --arrivals, --poisson and --poisson-own must be above 0")
    kept = _records(options.runs) if options.runs is not None and options.runs.exists() else []
    if any(record["with"] != _identity(options) for record in kept):
        parser.error(f"{options.runs} holds runs of other options; name another file")
    write_rows(asyncio.run(measure(options)), options.json, print_rows)


if __name__ == "__main__":
    main()
