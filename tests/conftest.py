"""What holds for every test: few threads, no network, no settings of the person who runs it."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

# What is imported and collected stays: to look for garbage in it takes long, and is never worth it.
gc.disable()
# Before torch is imported: OpenMP reads its variables once.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# With a cache folder of its own a test would have each worker compile the kernels of the suffix cache anew.
os.environ.setdefault("NUMBA_CACHE_DIR", str(platformdirs.user_cache_path("reason-spec") / "numba"))
for _name in [name for name in os.environ if name.startswith("REASON_SPEC_")]:
    del os.environ[_name]
# Rich takes such a terminal for eighty columns wide, whatever a test says.
if os.environ.get("TERM") in ("dumb", "unknown"):
    del os.environ["TERM"]
# A run in the background has SIGINT ignored, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Models make some examples slow, and shared machines make all of them slow at times.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


_BEGIN_BEFORE = float(os.environ.get("TESTS_BEGIN_BEFORE", "inf"))
"""Seconds since the epoch, set by ``.ci/run``. A test that would begin later is skipped, and says so."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > _BEGIN_BEFORE:
        pytest.skip("left out: it would begin after TESTS_BEGIN_BEFORE")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


_exit_status = 0


def pytest_sessionfinish(exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


def pytest_unconfigure() -> None:
    """End the process a minute after its tests, whatever thread of a framework does not end, and show it."""

    def end() -> None:
        faulthandler.dump_traceback(2)
        os._exit(_exit_status)

    timer = threading.Timer(60, end)
    timer.daemon = True
    timer.start()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave this machine, so that no test comes to depend on one."""
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        internet = self.family in (socket.AF_INET, socket.AF_INET6)
        if internet and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to reach {address!r}; tests run without a network")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Leave what is in memory already out of every collection: there may be much of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
