from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path

import load
import pytest
from load import measure
from load_rows import Run, rows_of

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
