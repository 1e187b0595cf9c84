"""The torch engine: Hugging Face causal LMs on our own step loop."""

from __future__ import annotations

from typing import ClassVar

from reason_spec.engines.worker.engine import WorkerEngine


class TorchEngine(WorkerEngine):
    """Serves a Hugging Face causal LM."""

    host: ClassVar[str] = "reason_spec.engines.torch.host"
