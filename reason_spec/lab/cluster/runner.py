"""The same evaluation over a Ray cluster: an accelerator in each worker, one driver that owns the results."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from reason_spec.accelerator.cores import available_cores
from reason_spec.engines.weights import digest_weights
from reason_spec.errors import MissingDependencyError, SettingsError
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import Failure, new_session
from reason_spec.lab.cluster.driver import Driver, KeepTimeline, Notify, Place, units_of
from reason_spec.lab.cluster.worker import Assignment, Part
from reason_spec.settings import Settings
from reason_spec.types import Problem

LOCAL = "local"
_STORE_BYTES = 100_000_000
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where workers run, and how many of them share a machine.

    ``address`` is ``local`` for a cluster of this machine alone that ends with the run, ``auto`` for one that
    runs here already, ``HOST:PORT`` of a head node, or ``ray://HOST:PORT`` of a client server.
    """

    address: str = LOCAL
    workers_per_machine: int = 1

    @classmethod
    def parse(cls, text: str, workers_per_machine: int = 1) -> Self:
        """Read what the command line says: an address, or ``local:N`` for N workers on this machine.

        Raises:
            SettingsError: it is neither.
        """
        address, colon, count = text.strip().partition(":")
        if address == LOCAL and colon:
            if not count.isdigit() or int(count) < 1:
                raise SettingsError(f"--ray {text!r}: write local:N for N workers, such as local:2")
            return cls(LOCAL, int(count))
        if not address:
            raise SettingsError("--ray: name local, local:N, auto, or the address of a cluster as HOST:PORT")
        return cls(text.strip(), workers_per_machine)


async def run_on_ray(
    settings: Settings,
    problems: Sequence[Problem],
    strategies: Sequence[str] = (),
    *,
    cluster: Cluster | None = None,
    samples: int = 1,
    concurrency: int = 1,
    order_seed: int = 0,
    done: Collection[UnitKey] = frozenset(),
    retries: int = 2,
    session: str | None = None,
    keep_timeline: KeepTimeline | None = None,
    notify: Notify = logger.info,
) -> AsyncGenerator[Outcome | Failure]:
    """Yield each answer as soon as a worker has finished and graded it; the form of `evaluation.run.run`.

    A worker takes so many problems at a time as make ``concurrency`` answers, and answers them with all
    strategies, in the order that `run` has for them: what is compared was measured on one machine. Where a
    worker dies, or an answer fails, what is missing is put back and tried elsewhere if there is an elsewhere.

    Args:
        settings: sent to the workers as data; files that it names have to be there under the same names.
        cluster: None: one worker on this machine.
        samples, concurrency, order_seed, done: as in `run`; ``concurrency`` is that of each worker.
        retries: how often an answer is tried again; why is in its ``failed_tries``.
        keep_timeline: called with the timeline of an answer before the answer is yielded.
        notify: told in a sentence of workers that are ready, or lost.

    Raises:
        MissingDependencyError: Ray is not installed.
        SettingsError: the cluster cannot be reached, or has no machine with a core to spare.
        DataError: a worker has another version of the package, or other weights.
        EngineError: no worker could be kept alive, or `MAX_FAILURES_IN_A_ROW` batches in a row had no answer.
    """
    cluster = cluster or Cluster()
    names = tuple(dict.fromkeys(strategies)) or (settings.strategy.name,)
    units = list(units_of(problems, names, samples, concurrency, done))
    if not units:
        return
    assignment = Assignment(
        settings=settings.model_dump(mode="json"),
        strategies=names,
        samples=samples,
        concurrency=concurrency,
        order_seed=order_seed,
        session=session or new_session(),
        part=Part(),
        folder=str(Path.cwd()),
        with_timelines=keep_timeline is not None,
    )
    weights = asdict(digest_weights(settings))
    with _connected(cluster):
        driver = Driver(units, assignment, weights, retries, keep_timeline, notify)
        async with aclosing(driver.run(_places(cluster))) as results:
            async for result in results:
                yield result


def require_ray() -> Any:
    """Return the package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError("ray", "an evaluation over a cluster", "ray") from error
    return ray


@contextmanager
def _connected(cluster: Cluster) -> Iterator[None]:
    """Connect to a cluster, or start one; a connection that is there already is used and kept."""
    # Ray reports to its makers unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # It makes workers nice to everything else on their machine, by 15; these are timed.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray = require_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": cluster.address}
    if cluster.address == LOCAL:
        num_cpus = max(len(available_cores()), cluster.workers_per_machine)
        options |= {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"the Ray cluster {cluster.address!r} cannot be reached: {error}. `ray status` on its head node "
            "tells whether it runs; --ray local needs none"
        ) from error
    # Beside all that can be turned off, Ray prints that workers died, to standard output.
    with suppress(AttributeError):
        ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray.shutdown()


def _places(cluster: Cluster) -> list[Place]:
    """Return the parts of the cluster's machines, as they are now.

    Raises:
        SettingsError: no machine has a core for a worker.
    """
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
    count = cluster.workers_per_machine
    places: list[Place] = []
    for node in nodes:
        resources: Mapping[str, float] = node["Resources"] if node["Alive"] else {}
        num_cpus, num_gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        if num_cpus > 0:
            amounts = (_share(num_cpus, count), _share(num_gpus, count))
            machine = str(node["NodeManagerHostname"])
            places += [Place(node["NodeID"], machine, Part(index, count), *amounts) for index in range(count)]
    if not places:
        raise SettingsError("no machine of the Ray cluster has a CPU for a worker: see `ray status`")
    return places


def _share(amount: float, count: int) -> float:
    """Return an equal share that Ray takes: a whole number, or a fraction below one."""
    share = amount / count
    return float(int(share)) if share >= 1 else share
