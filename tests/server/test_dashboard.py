"""The Grafana dashboard: it asks for what the server exports, and Prometheus understands it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from reason_spec.control.load_controller import MODES
from tests.server.processes import ROOT, ServeProcess, bearer, serving, until
from tests.server.shop import ask as shop_ask
from tests.server.shop import keys_and_server
from tests.tools_ahead.conftest import shop_model

__all__ = ["keys_and_server", "shop_model"]

FOLDER = ROOT / "examples" / "grafana"
DASHBOARD = json.loads((FOLDER / "reason-spec.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
METRIC = r"(?:vllm|reason_spec):\w+"
KeysAndServer = tuple[dict[str, str], ServeProcess]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    # Without a planner: on a busy machine it would leave steps out, and their metrics would be missing.
    options = ["--max-tokens", "96", "--strategy", "lookahead", "--set", "strategy.planner=false"]
    for limit in ("max_running_requests", "max_queued_requests"):
        options += ["--set", f"server.{limit}=1"]
    with serving(*options, cwd=tmp_path_factory.mktemp("pair")) as process:
        until(lambda: process.status("/ready") == 200)
        crowd(process)
        yield process


def crowd(server: ServeProcess) -> None:
    """Ask until one request was refused: one runs, and one waits."""
    question = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"

    def is_refused() -> bool:
        with ThreadPoolExecutor(4) as threads:
            return 503 in threads.map(lambda _: server.ask(question).status_code, range(4))

    until(is_refused)


@pytest.fixture
def exported(server: ServeProcess, keys_and_server: KeysAndServer) -> dict[str, dict[str, set[str]]]:
    """The exported metrics of a pair and of a server that predicts calls: their labels with the values."""
    keys, shop = keys_and_server
    calls_are_made(shop, keys["ann"], "labels")
    texts = [one.http.get("/metrics", headers=bearer(keys["bob"])).text for one in (server, shop)]
    found: dict[str, dict[str, set[str]]] = {}
    for family in (one for text in texts for one in text_string_to_metric_families(text)):
        for suffix in SUFFIXES[family.type]:
            found.setdefault(family.name + suffix, {})
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return found


def test_every_metric_that_a_panel_asks_for_is_exported(exported: dict[str, dict[str, set[str]]]) -> None:
    asked = {name for _, query in QUERIES for name in re.findall(rf"\b{METRIC}", query)}
    assert len(asked) > 20
    assert asked <= exported.keys()
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    found = re.fullmatch(rf"label_values\(({METRIC}), (\w+)\)", variable["query"]["query"])
    assert found is not None
    assert exported[found[1]][found[2]] == {"says"}


def test_every_label_that_a_panel_asks_for_is_one_of_its_metric(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    wrong: list[tuple[str, ...]] = []
    num_checked = 0
    for title, query in QUERIES:
        for name, selector in re.findall(rf"({METRIC})\{{([^}}]*)\}}", query):
            for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
                values = exported[name].get(label, set())
                is_known = bool(values) if operator == "=~" else value in values
                wrong += [] if is_known else [(title, name, label, value)]
                num_checked += 1
        grouped = re.findall(rf"by \((\w+)\) \((?:rate\()?({METRIC})", query)
        assert len(grouped) == query.count(" by (")
        wrong += [(title, name, label) for label, name in grouped if label not in exported[name]]
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
                wrong += [] if f"by ({label})" in target["expr"] else [(panel["title"], label)]
    assert wrong == []
    assert num_checked > 40


def test_modes_are_shown_by_their_names() -> None:
    (panel,) = [panel for panel in PANELS if panel["type"] == "state-timeline"]
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert [int(value) for value in mapping["options"]] == list(range(len(MODES)))


@pytest.fixture
def prometheus(
    server: ServeProcess, keys_and_server: KeysAndServer, tmp_path: Path
) -> Iterator[httpx2.Client]:
    """Prometheus, which has looked at both servers before and after some more answers."""
    keys, shop = keys_and_server
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs prometheus (Debian's package of that name)")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    job["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    second = {
        **job,
        "job_name": "shop",
        "static_configs": [{"targets": [shop.url.removeprefix("http://")]}],
        "authorization": {"credentials": keys["bob"]},
    }
    config["scrape_configs"].append(second)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    calls_are_made(shop, keys["ann"], "before")
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
            until(lambda: len(query(client, MADE)) == 1)
            until(lambda: bool(query(client, "reason_spec:shed_requests_total")))
            calls_are_made(shop, keys["ann"], "after")
            crowd(server)
            server.ask("Ben has 7 pears and eats 2. How many pears are left?", stream=True)
            until(lambda: all(query(client, f"sum(increase({name}[1m])) > 0") for name in MOVING))
            yield client
    finally:
        process.terminate()
        process.wait()


MADE = "reason_spec:predicted_calls_made_total"
MOVING = (MADE, "reason_spec:shed_requests_total", "vllm:time_to_first_token_seconds_count")


def calls_are_made(shop: ServeProcess, key: str, session: str) -> None:
    """Ask for a call that is predicted and made, until that is counted."""

    def num_made() -> float:
        text = shop.http.get("/metrics", headers=bearer(key)).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(MADE))

    before = num_made()
    assert shop_ask(shop, key, session_id=session).status_code == 200
    until(lambda: num_made() > before)


def query(client: httpx2.Client, text: str) -> list[Any]:
    try:
        response = client.get("/query", params={"query": text})
    except httpx2.TransportError:
        return []
    if response.status_code == 503:
        return []  # it is starting
    assert response.status_code == 200, f"{text}: {response.text}"
    found: list[Any] = response.json()["data"]["result"]
    return found


def test_prometheus_answers_every_query(prometheus: httpx2.Client) -> None:
    asked = [(title, one.replace("$__rate_interval", "1m").replace("$model", ".*")) for title, one in QUERIES]
    assert [entry for entry in asked if not query(prometheus, entry[1])] == []


def test_a_tool_without_a_right_prediction_is_shown_at_zero(prometheus: httpx2.Client) -> None:
    (text,) = [one for title, one in QUERIES if title == "Read-only calls that were predicted"]
    none_made = text.replace(MADE, f"{MADE}_of_no_tool")
    (found,) = query(prometheus, none_made.replace("$__rate_interval", "1m").replace("$model", ".*"))
    assert (found["metric"], float(found["value"][1])) == ({"tool": "get_order"}, 0.0)
