"""The torch engine: Hugging Face causal LMs on our own step loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.engines.worker.messages import LoadLayers, Start
from reason_spec.engines.worker.process import WorkerProcess
from reason_spec.errors import EngineError
from reason_spec.types import AcceptanceRule


class TorchEngine(WorkerEngine):
    """Serves a Hugging Face causal LM."""

    host: ClassVar[str] = "reason_spec.engines.torch.host"
    reports_entropy = True
    _layers: Path | None = None

    @property
    def drafts_itself(self) -> bool:
        return self.settings.drafter is not None

    @property
    def acceptance_rules(self) -> tuple[AcceptanceRule, ...]:
        always: tuple[AcceptanceRule, ...] = ("exact", "cascade", "lenient")
        return always if self.settings.torch.judge is None else (*always, "judge")

    async def load_layers(self, file: Path) -> None:
        """Replace the layers of a pruned draft between two passes; a restarted worker loads them too.

        Cached prefixes are forgotten. Requests under way continue with the new layers.

        Raises:
            EngineError: the file is damaged or has other layers; the present ones stay.
        """
        earlier, self._layers = self._layers, file
        try:
            await self._call(LoadLayers(self._pending.next_number(), file))
        except EngineError:
            self._layers = earlier
            raise

    def _launch(self) -> tuple[WorkerProcess, Start]:
        worker, start = super()._launch()
        return worker, replace(start, layers=self._layers)
