from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import load
import pytest
from load import Bench, Capacity, measure, time_runs
from load_rows import BASELINES, Run, rows_of

RUN = Run("alone", 4, None, 0, 10.0, 100, 8, 0.4, "-", 0, 3.2)


def test_rows_are_compared_with_the_faster_baseline_of_the_same_load() -> None:
    runs = [
        RUN,
        replace(RUN, arm="alone-shared", num_tokens=50),
        replace(RUN, arm="controller", num_tokens=300, live=3.9),
        replace(RUN, load=0, share=1.2, capacity_of="controller", seconds_per_token=0.8),
        replace(RUN, arm="alone-shared", load=0, share=1.2, capacity_of="controller", seconds_per_token=1.0),
        replace(RUN, arm="controller", load=0, share=1.2, capacity_of="controller", seconds_per_token=0.2),
    ]
    rows = {(row.load, row.arm): row for row in rows_of(runs, ["alone", "alone-shared", "controller"])}
    assert rows["4", "alone"].speedup == 1.0
    assert rows["4", "controller"].speedup == pytest.approx(3.0)
    assert rows["4", "controller"].live == 3.9
    arriving = "arrivals, 1.2 of the capacity of controller"
    assert rows[arriving, "controller"].speedup == pytest.approx(4.0)


class Stopwatch:
    """A bench without engines: every run takes as long as `RUN`."""

    def __init__(self) -> None:
        self.num_runs = 0

    async def closed_loop(self, arm: str, load: int, repeat: int, num_answers: int) -> Run:
        self.num_runs += repeat >= 0
        return replace(RUN, arm=arm, load=load, repeat=repeat)

    async def arrivals(
        self, arm: str, share: float, capacity: Capacity, repeat: int, num_answers: int
    ) -> Run:
        self.num_runs += 1
        return replace(RUN, arm=arm, load=0, share=share, capacity_of=capacity.arm, repeat=repeat)


def test_kept_runs_of_other_arms_loads_and_repeats_have_no_rows(tmp_path: Path) -> None:
    def options(**values: Any) -> argparse.Namespace:
        others = dict.fromkeys(
            ("models", "target", "draft", "engine", "padded", "eager", "max_tokens", "verifier")
        )
        given = {"repeats": 1, "poisson": [0.5], "poisson_own": [], "answers": 1, "arrivals": 2, "seed": 0}
        return argparse.Namespace(**others | given | values | {"runs": tmp_path / "runs.jsonl"})

    def timed(arms: list[str], **values: Any) -> tuple[list[tuple[str, str]], int]:
        bench = Stopwatch()
        runs = asyncio.run(time_runs(cast("Bench", bench), arms, options(**values)))
        return [(row.load, row.arm) for row in rows_of(runs, arms)], bench.num_runs

    few, many = [*BASELINES, "tokens"], [*BASELINES, "tokens", "depth-2"]
    timed(few, loads=[1, 4])
    stopped = replace(RUN, arm="tokens", load=1, repeat=1)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write(json.dumps({**asdict(stopped), "with": ""}) + "\n")
    arriving = "arrivals, 0.5 of the capacity of alone"
    assert timed(many, loads=[4]) == ([(load, arm) for load in ("4", arriving) for arm in many], 2)
    assert timed(few, loads=[1]) == ([(load, arm) for load in ("1", arriving) for arm in few], 0)


def test_baselines_run_in_an_engine_of_their_own_and_live_answers_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_FEWEST_ANSWERS", 4)
    monkeypatch.setattr(load, "_WARM_UP", 2)
    options = argparse.Namespace(
        models="demo", target=None, draft=None, engine="torch", padded=0, eager=False, loads=[2],
        poisson=[0.5], poisson_own=[1.2], fixed=["tokens"], repeats=1, answers=1, arrivals=2, max_tokens=12,
        verifier="exact", seed=0, runs=tmp_path / "runs.jsonl", json=None,
    )  # fmt: skip
    rows = asyncio.run(measure(options))
    by_load = {name: [row for row in rows if row.load == name] for name in {row.load for row in rows}}
    assert set(by_load) == {
        "2",
        "arrivals, 0.5 of the capacity of alone",
        "arrivals, 1.2 of the capacity of controller",
    }
    for own in by_load.values():
        assert [row.arm for row in own] == ["alone", "alone-shared", "controller", "tokens"]
    assert all(0 < row.live <= 2.01 for row in by_load["2"])
    kept = [json.loads(line) for line in options.runs.read_text().splitlines()]
    assert len(kept) == 4 * 3
    assert all(run["num_tokens"] > 0 for run in kept)
