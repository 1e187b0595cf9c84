"""The vLLM engine, as its callers see it."""

from __future__ import annotations

import logging
from math import isnan
from typing import ClassVar

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import Score
from reason_spec.engines.vllm.arguments import (
    TESTED,
    require_vllm,
    speculative_config,
    takes_hints,
    worker_environment,
)
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.settings import EngineSettings, SuffixSettings
from reason_spec.types import Prefix

logger = logging.getLogger(__name__)


class VllmEngine(WorkerEngine):
    """Serves a model through vLLM.

    The worker drives vLLM's engine core step by step, in one process. So a complete reasoning step ends
    before the next pass, without stop strings, and a hint is drafted from in the next pass.

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
                "engine %r: hints were not tested with vLLM %s, but with %s; it generates without token "
                "drafts. Install one of those versions, or set another token_method",
                name,
                version,
                ", ".join(TESTED),
            )
        super().__init__(name, settings, suffix, texts_of)
        self.takes_hints = settings.vllm.token_method == "hint" and takes_hints(version)
        self._drafts_tokens = speculative_config(settings, version) is not None

    @property
    def takes_biases(self) -> bool:
        """False while tokens are drafted: vLLM cannot combine the two."""
        return not self._drafts_tokens

    async def score_next(self, prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        score = await super().score_next(prefix, tokens)
        if not any(map(isnan, score.logprobs)):
            return score
        # vLLM returns the largest log-probabilities only. One is missing, so each token is scored.
        return await Engine.score_next(self, prefix, tokens)

    def _environment(self) -> dict[str, str]:
        return worker_environment(self.settings)
