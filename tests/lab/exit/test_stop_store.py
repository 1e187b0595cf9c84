"""Replayed answers survive a stop, and belong to one rule and its models."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reason_spec.errors import ResumeError
from reason_spec.lab.exit.live_rules import LiveStop
from reason_spec.lab.exit.rules import Stop
from reason_spec.lab.exit.stop_store import StopFolder
from reason_spec.settings import Settings, load_settings


def settings(**values: Any) -> Settings:
    found = load_settings(flags={name.replace("__", "."): value for name, value in values.items()})
    return found.model_copy(update={"exit": found.exit.model_copy(update={"deadline": math.inf})})


def test_stops_go_on_where_they_were_and_only_under_the_same_rule(tmp_path: Path) -> None:
    stops = {
        "1-a": LiveStop(Stop(3, "7 €"), 120, ("{7 €}\n", ""), True),
        "2-b": LiveStop(None, 300, (), False),
    }
    with StopFolder(tmp_path, settings(exit__rule="deer")) as folder:
        for key, found in stops.items():
            folder.append(key, found)
    with (tmp_path / "stops.jsonl").open("a") as file:
        file.write('{"key": "3-c", "st')
    with StopFolder(tmp_path, settings(exit__rule="deer", target__hang_timeout=60)) as folder:
        assert folder.stops == stops
    for other in ({"exit__rule": "dynasor"}, {"exit__rule": "deer", "exit__confidence": 0.8}):
        with pytest.raises(ResumeError, match="holds stops with other exit"):
            StopFolder(tmp_path, settings(**other))
    with StopFolder(tmp_path, settings(exit__rule="dynasor"), fresh=True) as folder:
        assert folder.stops == {}


def test_what_describes_the_stops_is_json_for_every_reader(tmp_path: Path) -> None:
    with StopFolder(tmp_path, settings(exit__rule="probes")) as folder:
        folder.append("1-a", LiveStop(None, 0, (), True))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    about = json.loads((tmp_path / "stops.json").read_text(), parse_constant=refuse)
    assert about["exit"]["rule"] == "probes"


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with StopFolder(tmp_path, settings(exit__rule="deer")) as folder:
        folder.append("1-a", LiveStop(None, 0, (), True))
    damaged = '{"key": "1-a", "stop": [1], "end": 2, "trials": [], "fits": true}\n'
    (tmp_path / "stops.jsonl").write_text(damaged)
    with pytest.raises(ResumeError, match=r"stops\.jsonl, line 1"):
        StopFolder(tmp_path, settings(exit__rule="deer"))
