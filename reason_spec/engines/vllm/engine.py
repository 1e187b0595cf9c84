"""The vLLM engine: the same contract, on the engine people serve with."""

from __future__ import annotations

import logging
from math import isnan
from typing import ClassVar

from reason_spec.engines.base import Engine, Score
from reason_spec.engines.vllm.arguments import TESTED, require_vllm, takes_hints, worker_environment
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.settings import EngineSettings, SuffixSettings
from reason_spec.types import Prefix

logger = logging.getLogger(__name__)


class VllmEngine(WorkerEngine):
    """Serves a model through vLLM.

    The worker drives vLLM's engine core step by step, in one process. So a step of reasoning that is
    complete ends before the next pass, without stop strings, and a hint reaches the drafts of the next
    pass without a message to another process.

    Raises:
        MissingDependencyError: vLLM is not installed.
    """

    host: ClassVar[str] = "reason_spec.engines.vllm.host"

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        suffix: SuffixSettings | None = None,
        texts_of: EngineSettings | None = None,
    ) -> None:
        version = require_vllm()
        if settings.vllm.token_method == "hint" and not takes_hints(version):
            logger.warning(
                "engine %r: vLLM %s is not one of those that hints were tested with (%s); it writes without "
                "token drafts. Install one of those, or name another token_method",
                name,
                version,
                ", ".join(TESTED),
            )
        super().__init__(name, settings, suffix, texts_of)
        self.takes_hints = settings.vllm.token_method == "hint" and takes_hints(version)

    async def score_next(self, prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        score = await super().score_next(prefix, tokens)
        if not any(map(isnan, score.logprobs)):
            return score
        # vLLM returns the log-probabilities of the most likely tokens only. One is missing: score each.
        return await Engine.score_next(self, prefix, tokens)

    def _environment(self) -> dict[str, str]:
        return worker_environment(self.settings)
