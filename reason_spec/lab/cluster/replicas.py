"""Several pairs behind one address with Ray Serve: a pair in each replica, and who gets which request."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from reason_spec.accelerator.cores import available_cores
from reason_spec.errors import EngineError, MissingDependencyError, ReasonSpecError, SettingsError
from reason_spec.lab.cluster.runner import LOCAL, Cluster, connected, slots
from reason_spec.lab.cluster.worker import MachineShare
from reason_spec.server.keys import load_keys
from reason_spec.server.logs import configure_logging
from reason_spec.server.service import Service
from reason_spec.settings import Settings

logger = logging.getLogger(__name__)
APPLICATION = "reason-spec"
_ROUTER = "reason_spec.lab.cluster.session_router.SessionRouter"
_HEALTH_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_TROUBLE_SECONDS = 300.0
"""A worker that died restarts by itself and loads its model again, which takes minutes."""


class Replica:
    """A pair, in a process of Ray Serve.

    Args:
        settings: the resolved tree as JSON values; names of files in it are relative to ``folder``.
        num_shares: replicas on one machine; each takes its share of the cores, by its rank.

    Raises:
        EngineError: a model could not be loaded.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it before the replica gets requests
        self, settings: dict[str, Any], folder: str, num_shares: int
    ) -> None:
        from ray import serve

        with suppress(OSError):
            os.chdir(folder)
        rank = serve.get_replica_context().rank.local_rank % num_shares
        cores = MachineShare(rank, num_shares).of(available_cores())
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        tree = Settings.model_validate(settings)
        configure_logging(with_values=tree.server.log_prompts)
        self._service = Service(tree)
        try:
            await self._service.start()
            self._healthy_at = time.monotonic()
        except ReasonSpecError as error:
            # It has one text, which Ray can carry to any Python.
            raise EngineError(str(error)) from None

    def __serve_build_asgi_app__(self) -> Any:
        return self._service.guard

    async def check_health(self) -> None:
        """Have Ray replace this replica where its target does not come back.

        Raises:
            EngineError: the target has been dead or hanging for `_TROUBLE_SECONDS`.
        """
        now = time.monotonic()
        if self._service.operation.is_ready:
            self._healthy_at = now
        elif now - self._healthy_at > _TROUBLE_SECONDS:
            raise EngineError("; ".join(self._service.operation.troubles.values()) or "not ready")

    async def __del__(self) -> None:
        await self._service.drain(self._service.settings.server.drain_seconds)


def prepare(settings: Settings, cluster: Cluster) -> Any:
    """Open the address on a cluster that is connected; return the application of the replicas.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
        SettingsError: the address can be reached by others and there is no key, no port is named, or Ray
            Serve runs on the cluster already, at another address.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise MissingDependencyError("ray[serve]", "serving on a cluster", "ray-serve") from error
    load_keys(settings.server, settings.suffix.tenant)
    host, port = settings.server.host, settings.server.port
    if port == 0:
        raise SettingsError("server.port = 0: with --ray, name the port")
    places = slots(cluster)
    serve.start(http_options={"host": host, "port": port, "request_timeout_s": None})
    # Where it runs already it keeps its address, and Ray has no public name for that.
    running = serve.context._get_global_client().http_config
    if (running.host, running.port) != (host, port):
        raise SettingsError(
            f"Ray Serve runs on the cluster already, at {running.host}:{running.port}, not at {host}:{port}: "
            f"give --host {running.host} --port {running.port}, or end it with `serve shutdown`"
        )
    deployment = serve.deployment(
        name="pair",
        num_replicas=len(places),
        max_replicas_per_node=cluster.workers_per_machine,
        # Requests wait in the replica, where tenants take turns.
        max_ongoing_requests=settings.server.max_running_requests + settings.server.max_queued_requests,
        request_router_config={"request_router_class": _ROUTER},
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.server.drain_seconds + 5,
        ray_actor_options={
            "num_cpus": min(place.num_cpus for place in places),
            "num_gpus": min(place.num_gpus for place in places),
        },
    )(serve.ingress()(Replica))
    application = deployment.bind(
        settings.model_dump(mode="json"), str(Path.cwd()), cluster.workers_per_machine
    )
    return serve.RunTarget(application, APPLICATION, "/")


async def serve_on_ray(settings: Settings, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Serve until a signal stops it, which may come while the pairs load.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
        SettingsError: see `prepare`; or the cluster cannot be reached, or the replicas did not start.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    with connected(cluster):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        target = await asyncio.to_thread(prepare, settings, cluster)
        try:
            if await _deploy(target, stopped):
                url = f"http://{settings.server.host}:{settings.server.port}/v1"
                say(f"{cluster.workers_per_machine} pairs a machine are served at {url}; Ctrl-C stops.")
                await stopped.wait()
        finally:
            await asyncio.to_thread(_take_back, cluster)


async def _deploy(target: Any, stopped: asyncio.Event) -> bool:
    """Start the replicas; return whether all were loaded before the signal that stops.

    Raises:
        SettingsError: a replica did not start.
    """
    from ray import serve

    # A thread that waited for the replicas could not be stopped.
    await asyncio.to_thread(serve.run_many, [target], wait_for_applications_running=False)
    while not stopped.is_set():
        application = (await asyncio.to_thread(serve.status)).applications[APPLICATION]
        if application.status == "RUNNING":
            return True
        if application.status == "DEPLOY_FAILED":
            raise SettingsError(f"the pairs could not be started: {application.message}")
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), _LOOK_SECONDS)
    return False


def _take_back(cluster: Cluster) -> None:
    """Delete the pairs from a cluster; what others serve on it stays."""
    from ray import serve

    try:
        if cluster.address == LOCAL:
            serve.shutdown()
        else:
            serve.delete(APPLICATION)
    except Exception as error:
        # Ray names no class for it, and why the pairs end is worth more than this.
        logger.warning("the pairs may still be on the cluster (%s); `serve shutdown` removes them", error)
