"""An evaluation over a Ray cluster: an accelerator in each worker, and one driver that owns the results."""

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
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.job import Job, KeepTimeline
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import new_session
from reason_spec.lab.cluster.driver import Driver, Notify, Slot, units_of
from reason_spec.lab.cluster.worker import Assignment, MachineShare
from reason_spec.settings import Settings
from reason_spec.types import Problem

LOCAL = "local"
_STORE_BYTES = 100_000_000
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address of a cluster, and how many workers share one of its machines.

    ``address`` is ``local`` for a cluster of this machine that ends with the run, ``auto`` for one that runs
    here already, ``HOST:PORT`` of a head node, or ``ray://HOST:PORT`` of a client server.
    """

    address: str = LOCAL
    workers_per_machine: int = 1

    @classmethod
    def parse(cls, text: str, workers_per_machine: int = 1) -> Self:
        """Read an address, or ``local:N`` for N workers on this machine.

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


@dataclass(slots=True)
class RayBackend:
    """Generates the answers of a job on the workers of a cluster; see `evaluation.job.Backend`.

    What workers measure about their engines is in their answers, not in the session.
    """

    cluster: Cluster
    _session: str = ""

    async def start(self, job: Job) -> None:
        self._session = new_session()
        details = {"order_seed": job.settings.sampling.seed, "ray": asdict(self.cluster)}
        job.folder.begin_session(self._session, job.options.strategies, details)

    def answers(self, job: Job, keep_timeline: KeepTimeline | None) -> AsyncGenerator[Outcome | Failure]:
        options = job.options
        return run_on_ray(
            job.settings,
            job.problems,
            options.strategies,
            cluster=self.cluster,
            samples=options.samples,
            concurrency=options.concurrency,
            order_seed=job.settings.sampling.seed,
            done=job.unwanted,
            retries=options.num_retries,
            session=self._session,
            keep_timeline=keep_timeline,
            notify=job.view.say,
        )

    async def finish(self, job: Job) -> None:
        return None

    async def close(self) -> None:
        return None


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
    """Yield each answer as soon as a worker has finished and graded it, as `evaluation.run.run` does.

    A worker takes as many problems at a time as make ``concurrency`` answers, and answers them with all
    strategies in the order of `run`: compared answers were measured on one machine. The missing answers of a
    lost worker go to the next free one.

    Args:
        settings: sent to the workers as data; the files they name must have the same names there.
        cluster: None: one worker on this machine.
        samples, concurrency, order_seed, done: as in `run`; ``concurrency`` is that of each worker.
        retries: how often an answer is tried again; ``failed_tries`` has the reasons.
        keep_timeline: called with the timeline of an answer before the answer is yielded.
        notify: called with a sentence about workers that are ready or lost.

    Raises:
        MissingDependencyError: Ray is not installed.
        SettingsError: the cluster cannot be reached, or no machine has a core for a worker.
        DataError: a worker has another version of the package, or other weights.
        EngineError: no worker could be kept alive, or `MAX_FAILURES_IN_A_ROW` units in a row were given up.
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
        folder=str(Path.cwd()),
        retries=retries,
        with_timelines=keep_timeline is not None,
    )
    weights = asdict(digest_weights(settings))
    with connected(cluster):
        driver = Driver(units, assignment, weights, retries, keep_timeline, notify)
        async with aclosing(driver.run(slots(cluster))) as results:
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
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect to a cluster, or start one; an existing connection is used and kept."""
    # Ray reports usage to its makers by default, and gives workers a niceness of 15, which would distort
    # times.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
    # No public option keeps Ray from printing the deaths of workers to standard output.
    with suppress(AttributeError):
        ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray.shutdown()


def slots(cluster: Cluster) -> list[Slot]:
    """Return the slots of the cluster's present machines.

    Raises:
        SettingsError: no machine has a core for a worker.
    """
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
    count = cluster.workers_per_machine
    found: list[Slot] = []
    for node in nodes:
        resources: Mapping[str, float] = node["Resources"] if node["Alive"] else {}
        if num_cpus := resources.get("CPU", 0.0):
            amounts = (_share(num_cpus, count), _share(resources.get("GPU", 0.0), count))
            machine = str(node["NodeManagerHostname"])
            shares = (MachineShare(index, count) for index in range(count))
            found += [Slot(node["NodeID"], machine, share, *amounts) for share in shares]
    if not found:
        raise SettingsError("no machine of the Ray cluster has a CPU for a worker: see `ray status`")
    return found


def _share(amount: float, count: int) -> float:
    """Return an equal share that Ray accepts: a whole number, or a fraction below one."""
    share = amount / count
    return float(int(share)) if share >= 1 else share
