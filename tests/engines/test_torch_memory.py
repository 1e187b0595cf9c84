"""Weights are in memory once, and nothing grows with the number of problems that were served."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reason_spec.engines.generation import EngineRequest, Hint
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.types import Prefix
from tests.engines.tiny_models import Served, drain

NUM_PROBLEMS = 600
SETTLED = 300
"""Problems after which the caches are full and the allocator has what it needs."""
MAX_GROWTH_BYTES = 3_000_000


LOAD = """
import sys
from pathlib import Path
from reason_spec.engines.torch.load import load_model
from reason_spec.settings import EngineSettings

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

before = anonymous()
model = load_model(EngineSettings(model=sys.argv[1], dtype="bfloat16", cache_tokens=256))
print(anonymous() - before)
"""


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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_weights_that_are_joined_and_packed_leave_no_other_copy_in_memory(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=272,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    module = LlamaForCausalLM(config).to(torch.bfloat16)
    weights = sum(one.numel() * one.element_size() for one in module.parameters())
    module.save_pretrained(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    # The libraries that loading imports have a share of their own.
    assert int(run.stdout) < 1.2 * weights + 150_000_000, run.stderr
