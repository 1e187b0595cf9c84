"""Nothing grows with the number of problems that were served."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from reason_spec.engines.generation import EngineRequest, Hint
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.types import Prefix
from tests.engines.tiny_models import Served, drain

NUM_PROBLEMS = 600
SETTLED = 300
"""Problems after which the caches are full and the allocator has what it needs."""
MAX_GROWTH_BYTES = 3_000_000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def solve_one(scheduler: Scheduler, rng: np.random.Generator, number: int) -> None:
    """One problem: a prompt of its own, two steps, hints right and wrong, a branch that is cancelled."""
    prompt = tuple(rng.integers(0, 260, 60).tolist())
    hint = tuple(rng.integers(0, 260, 8).tolist())
    scheduler.submit(3 * number, EngineRequest(Prefix(prompt), 10, hint=hint, num_draft_tokens=8))
    scheduler.submit(3 * number + 1, EngineRequest(Prefix((*prompt, *hint)), 50))
    scheduler.step()
    scheduler.offer_hint(3 * number, Hint(hint[::-1], start=1, index=1))
    scheduler.step()
    scheduler.cancel(3 * number + 1)
    scheduler.score(3 * number + 2, Prefix(prompt), hint)
    drain(scheduler)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_problems(qwen: Served) -> None:
    scheduler = Scheduler(qwen.model, qwen.tokenizer, num_slots=1024, kept_prediction_bytes=1 << 18)
    rng = np.random.default_rng(0)
    before = 0
    for number in range(NUM_PROBLEMS):
        solve_one(scheduler, rng, number)
        if number == SETTLED:
            gc.collect()
            before = resident_bytes()
    gc.collect()
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    assert not scheduler._sequences
    assert not len(scheduler._admission.groups)
    assert scheduler._acceptor._kept._num_bytes <= 1 << 18
    assert scheduler._trie.num_nodes <= 1024
    assert len(scheduler._trie._eviction_queue) < 4096
    scheduler.check_integrity()
