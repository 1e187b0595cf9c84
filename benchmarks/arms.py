"""What the benchmarks of answers share: arms that take turns on problems, and what solves in them."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from models import Task
from rich.console import Console
from rich.table import Table
from table_forms import Column

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.accelerator.load import with_new_planners
from reason_spec.engines.model_files import resolve_model
from reason_spec.errors import ReasonSpecError
from reason_spec.evaluation.loops import LoopScanner, seconds_until
from reason_spec.events import Recorder
from reason_spec.settings import EngineSettings, Settings, load_settings
from reason_spec.types import Step


@dataclass(frozen=True, slots=True)
class Run:
    """One row on one problem; where it ``looped``, tokens and seconds are those before the loop."""

    seconds: float
    num_tokens: int
    tokens: tuple[int, ...]
    right: bool
    solution: Solution | None = None
    looped: bool = False


def token_seconds(run: Run) -> float:
    return run.seconds / max(1, run.num_tokens)


@dataclass(slots=True)
class Arm:
    """One row at one temperature, with its measurements."""

    name: str
    temperature: float
    solve: Callable[[Task, int], Any]
    runs: list[Run] = field(default_factory=list)


class _Stopwatch:
    """Times the tokens of one answer as they come, and looks for the beginning of a loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._scanner = LoopScanner()
        self._tokens: list[int] = []
        self._marks: list[tuple[int, float]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def take(self, tokens: Sequence[int]) -> bool:
        """Take the next tokens; return whether the text loops."""
        self._tokens += tokens
        self._marks.append((len(self._tokens), self.elapsed))
        return self._scanner.feed(tokens) is not None

    def run(self, right: bool, solution: Solution | None = None, *, cut: bool) -> Run:
        """Return the measurements; with ``cut`` those before the loop."""
        end = self._scanner.start if cut else None
        if end is None:
            return Run(self.elapsed, len(self._tokens), tuple(self._tokens), right, solution)
        seconds = seconds_until(self._marks, end)
        return Run(seconds, end, tuple(self._tokens[:end]), right, solution, looped=True)


def cpu_seconds_of_engines() -> float:
    """Return the seconds of processor time of the workers so far; other work does not change them."""
    times = [child.cpu_times() for child in psutil.Process().children()]
    return float(sum(one.user + one.system for one in times))


class Ours:
    """The accelerator, under the settings of one row at a time; engines are shared by all rows.

    ``until_loop``: an answer ends where it begins to loop. ``clock`` times the answers.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        until_loop: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._accelerator = accelerator
        self._clock = clock
        self._until_loop = until_loop
        self._generators: dict[str, Generator] = {}
        # Where no row has a draft nothing is planned.
        self.costs = None if accelerator.planner is None else accelerator.planner.costs

    def generator(self, settings: Settings) -> Generator:
        """Return the generator of these settings; its planner has seen only what was written under them."""
        if settings.hash not in self._generators:
            base = self._accelerator.generator
            control = with_new_planners(base.control, settings.strategy, base.target)
            self._generators[settings.hash] = replace(base, settings=settings, control=control)
        return self._generators[settings.hash]

    async def prepare(self, settings: Settings) -> None:
        """Empty caches, and load what these settings need."""
        await self.generator(settings).prepare()

    async def solve(self, settings: Settings, problem: Task, index: int) -> Run:
        """Solve one problem; its index keys the sampling noise, the same for every row.

        Rows share engines, but what an engine learns from texts is kept by scope: no row must find what
        another wrote. A warm-up, with index 0, has a scope of its own.
        """
        generator = self.generator(settings)
        scope = f"{settings.hash} {'timed' if index else 'warm-up'}"
        request = generator.request(problem.question, problem=index, scope=scope)
        strategy = generator.strategy_for(request)
        watch, recorder, steps = _Stopwatch(self._clock), Recorder(), list[Step]()
        async with aclosing(generator.solve(request, recorder=recorder, strategy=strategy)) as solving:
            async for step in solving:
                steps.append(step)
                if watch.take(step.tokens) and self._until_loop:
                    break
        text = "".join(step.text for step in steps)
        solution = Solution(text, tuple(steps), watch.elapsed, strategy.name, strategy.loss_class, recorder)
        return watch.run(problem.is_right(text), solution, cut=self._until_loop)


class Transformers:
    """``generate`` of transformers on the target, with the number of threads that suits it best.

    ``until_loop``: a text ends where it begins to loop.
    """

    def __init__(self, target: EngineSettings, max_tokens: int, *, until_loop: bool = False) -> None:
        import torch
        from transformers import AutoTokenizer

        self._torch = torch
        self._dtype = torch.float32 if target.dtype == "auto" else getattr(torch, target.dtype)
        self._device = "cpu" if target.device == "auto" else target.device
        self._model = self.load("target", target.model)
        self._tokenizer = AutoTokenizer.from_pretrained(resolve_model("target", target.model))
        self._max_tokens = max_tokens
        self._until_loop = until_loop

    def load(self, role: str, model: str) -> Any:
        """Return a model for ``generate``, such as an assistant, with the dtype and device of the target."""
        from transformers import AutoModelForCausalLM

        from reason_spec.engines.torch.trimmed_head import TrimmedHead, read_vocabulary

        folder = resolve_model(role, model)
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self._dtype).to(self._device)
        if (predicted := read_vocabulary(folder)) is not None:
            loaded.set_output_embeddings(TrimmedHead(loaded.get_output_embeddings(), predicted))
        return loaded.eval()

    def calibrate(self, num_cores: int) -> int:
        """Time a short text on one core and on all, and keep the faster setting."""
        seconds: dict[int, float] = {}
        for threads in {1, num_cores}:
            self._torch.set_num_threads(threads)
            self.generate("How many?", 0.0, 0, 8)
            started = time.perf_counter()
            self.generate("How many?", 0.0, 0, 32)
            seconds[threads] = time.perf_counter() - started
        best = min(seconds, key=seconds.__getitem__)
        self._torch.set_num_threads(best)
        return best

    def generate(
        self, question: str, temperature: float, seed: int, max_tokens: int, **options: Any
    ) -> _Stopwatch:
        """Write an answer; ``options`` are further arguments of ``generate``."""
        watch = _Stopwatch()
        encoded = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        start = encoded["input_ids"].shape[1]

        def is_over(tokens: Any, _scores: Any, **_: Any) -> Any:
            loops = watch.take(tokens[0, start + watch.num_tokens :].tolist())
            return self._torch.full((1,), loops and self._until_loop, device=tokens.device)

        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        self._torch.manual_seed(seed)
        with self._torch.inference_mode():
            self._model.generate(
                **encoded.to(self._model.device),
                max_new_tokens=max_tokens,
                stopping_criteria=[is_over],
                **(sampling or {"do_sample": False}),
                **options,
            )
        return watch

    def solve(self, problem: Task, temperature: float, index: int, **options: Any) -> Run:
        watch = self.generate(problem.question, temperature, index, self._max_tokens, **options)
        run = watch.run(False, cut=self._until_loop)
        text = self._tokenizer.decode(run.tokens, skip_special_tokens=True)
        return replace(run, right=problem.is_right(text))


def settings_of(flags: dict[str, Any], strategy: str, temperature: float, max_tokens: int) -> Settings:
    return load_settings(
        flags={
            **flags,
            "strategy.name": strategy,
            "sampling.temperature": temperature,
            "sampling.max_tokens": max_tokens,
        }
    )


async def time_rows(arms: Sequence[Arm], chosen: Sequence[Task], seed: int) -> None:
    """Solve each problem with every arm, in an order of its own; the first problem is a warm-up."""
    rng = random.Random(seed)
    for index, problem in enumerate([chosen[0], *chosen]):
        for arm in rng.sample(arms, len(arms)):
            run = await arm.solve(problem, index)
            if index:
                arm.runs.append(run)
        sys.stderr.write(f"\r{index} of {len(chosen)} problems timed")
    sys.stderr.write("\n")


def write_measured(
    measuring: Coroutine[Any, Any, Sequence[Any]],
    destination: Path | None,
    show: Callable[[Sequence[Any]], None],
) -> None:
    """Measure rows, then `write_rows`; an error of ours ends the program with its message."""
    try:
        rows = asyncio.run(measuring)
    except ReasonSpecError as error:
        sys.exit(f"error: {error}")
    write_rows(rows, destination, show)


def _fields(row: Any) -> dict[str, Any]:
    return row if isinstance(row, dict) else asdict(row)


def write_rows(rows: Sequence[Any], destination: Path | None, show: Callable[[Sequence[Any]], None]) -> None:
    """Show rows as a table, and write them as JSON to a file; ``-`` is standard output, without the table."""
    text = json.dumps([_fields(row) for row in rows], indent=2) + "\n"
    if destination == Path("-"):
        sys.stdout.write(text)
        return
    show(rows)
    if destination is not None:
        destination.write_text(text)


def printer(*columns: Column) -> Callable[[Sequence[Any]], None]:
    """Return a function that prints rows as a table; a column without a heading names the row."""

    def show(rows: Sequence[Any]) -> None:
        table = Table()
        cells = [[column.cell(_fields(row)).strip("`") for row in rows] for column in columns]
        for column, shown in zip(columns, cells, strict=True):
            is_text = any(cell[:1].isalpha() for cell in shown)
            heading = column.heading or "row"
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
        for line in zip(*cells, strict=True):
            table.add_row(*line)
        Console(width=175).print(table)

    return show
