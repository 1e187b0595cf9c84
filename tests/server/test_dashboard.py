"""The Grafana dashboard: it asks for what the server exports, and Prometheus understands it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from reason_spec.control.load_controller import MODES
from tests.server.processes import ROOT, ServeProcess, serving, until

FOLDER = ROOT / "examples" / "grafana"
DASHBOARD = json.loads((FOLDER / "reason-spec.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
# Nothing was refused or predicted, and no draft came too late: Prometheus has no sample of them yet.
MAY_BE_EMPTY = ("shed_requests_total", "request_queue_time_seconds", "predicted_calls")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    options = ("--max-tokens", "96", "--strategy", "lookahead")
    with serving(*options, cwd=tmp_path_factory.mktemp("pair")) as process:
        until(lambda: process.status("/ready") == 200)
        process.ask("Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?")
        yield process


def test_every_metric_that_a_panel_asks_for_is_exported(server: ServeProcess) -> None:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    exported = {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}
    asked = {name for _, query in QUERIES for name in re.findall(r"\b(?:vllm|reason_spec):\w+", query)}
    assert len(asked) > 20
    assert asked <= exported


def test_modes_are_shown_by_their_names() -> None:
    (panel,) = [panel for panel in PANELS if panel["type"] == "state-timeline"]
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert [int(value) for value in mapping["options"]] == list(range(len(MODES)))


@pytest.fixture
def prometheus(server: ServeProcess, tmp_path: Path) -> Iterator[httpx2.Client]:
    """Prometheus, which has looked at the server before and after some more answers."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs prometheus (Debian's package of that name)")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    job["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [
            program, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address={address}",
        ],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with httpx2.Client(base_url=f"http://{address}/api/v1") as client:
            until(lambda: bool(ask(client, "vllm:num_requests_running")))
            server.ask("Ben has 7 pears and eats 2. How many pears are left?", stream=True)
            until(lambda: has_moved(client))
            yield client
    finally:
        process.terminate()
        process.wait()


def ask(client: httpx2.Client, query: str) -> list[Any]:
    try:
        response = client.get("/query", params={"query": query})
    except httpx2.TransportError:
        return []
    if response.status_code == 503:
        return []  # it is starting
    assert response.status_code == 200, f"{query}: {response.text}"
    found: list[Any] = response.json()["data"]["result"]
    return found


def has_moved(client: httpx2.Client) -> bool:
    return bool(ask(client, "sum(increase(vllm:request_success_total[1m])) > 0"))


def test_prometheus_answers_every_query(prometheus: httpx2.Client) -> None:
    silent = []
    for title, query in QUERIES:
        query = query.replace("$__rate_interval", "1m").replace("$model", ".*")
        if not ask(prometheus, query):
            silent.append((title, query))
    assert [entry for entry in silent if not any(name in entry[1] for name in MAY_BE_EMPTY)] == []
