"""Pairs on a shared cluster: whatever ends `serve --ray`, it takes them back."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from reason_spec.errors import SettingsError
from reason_spec.lab.cluster.replicas import APPLICATION, serve_on_ray
from reason_spec.lab.cluster.runner import Cluster
from reason_spec.settings import Settings


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A cluster of one machine that runs already."""
    ray = MagicMock()
    node = {"Resources": {"CPU": 2.0}, "Alive": True, "NodeManagerHostname": "here", "NodeID": "1"}
    ray.nodes.return_value = [node]
    server = Settings().server
    running_at(ray, server.host, server.port)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def seen(status: str) -> SimpleNamespace:
    application = SimpleNamespace(status=status, message="no such model")
    return SimpleNamespace(applications={APPLICATION: application})


def running_at(ray: MagicMock, host: str, port: int) -> None:
    """Ray Serve listens there: as it was asked to, or because it ran before."""
    client = ray.serve.context._get_global_client.return_value
    client.http_config = SimpleNamespace(host=host, port=port)


async def served(ray: MagicMock) -> list[str]:
    """Serve until a signal; return what the operator was shown."""
    shown: list[str] = []
    try:
        await serve_on_ray(Settings(), Cluster("auto"), shown.append)
    finally:
        ray.serve.run_many.assert_called_once()
        ray.serve.delete.assert_called_once_with(APPLICATION)
    return shown


@pytest.mark.parametrize("status", ["DEPLOYING", "RUNNING"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_takes_the_pairs_back_whether_they_are_loaded_or_not(
    ray: MagicMock, number: signal.Signals, status: str
) -> None:
    def look() -> SimpleNamespace:
        os.kill(os.getpid(), number)
        return seen(status)

    ray.serve.status.side_effect = look
    assert len(await served(ray)) == (status == "RUNNING")


async def test_pairs_that_do_not_start_are_taken_back_and_the_reason_is_shown(ray: MagicMock) -> None:
    ray.serve.status.return_value = seen("DEPLOY_FAILED")
    ray.serve.delete.side_effect = RuntimeError("also fails")
    with pytest.raises(SettingsError, match="no such model"):
        await served(ray)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 8001), ("0.0.0.0", 8000)])
async def test_nothing_is_served_at_another_address_than_the_settings_name(
    ray: MagicMock, host: str, port: int
) -> None:
    running_at(ray, host, port)
    with pytest.raises(SettingsError, match=rf"already, at {host}:{port}, not at 127\.0\.0\.1:8000"):
        await serve_on_ray(Settings(), Cluster("auto"), print)
    ray.serve.run_many.assert_not_called()
