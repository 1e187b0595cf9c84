"""Models loaded by several threads at once, which transformers by itself does not stand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import PreTrainedModel

from reason_spec.engines.footprint import footprint
from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import load_pair_model
from reason_spec.settings import EngineSettings
from reason_spec.verifiers.encoder import SentenceEncoder
from reason_spec.verifiers.reward_models import load_classifier
from tests.verifiers.reward_folders import save_sequence_classifier


async def _load_encoder() -> None:
    encoder = SentenceEncoder()
    await encoder.start()
    await encoder.close()


def test_models_loaded_at_once_leave_transformers_and_torch_as_they_were(tmp_path: Path) -> None:
    """Else models with tied embeddings that are loaded later have random output layers."""
    classifier = save_sequence_classifier(tmp_path, 1)
    loads: list[Callable[[], object]] = [
        lambda: load_pair_model(embedded_path("draft")),
        lambda: load_classifier(str(classifier)),
        lambda: asyncio.run(_load_encoder()),
        lambda: footprint("target", EngineSettings(model=str(embedded_path("target")))),
    ]
    before = (PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.get_default_dtype())
    at_once = threading.Barrier(len(loads))

    def load_with_the_others(load: Callable[[], object]) -> None:
        at_once.wait(timeout=60)
        load()

    with ThreadPoolExecutor(len(loads)) as threads:
        for _ in range(4):
            list(threads.map(load_with_the_others, loads))
    assert (PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.get_default_dtype()) == before
    model = load_pair_model(embedded_path("draft")).model
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
