"""The models of an accelerator: engines, verifiers, routers and the suffix cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from reason_spec.accelerator.adaptation import DraftAdaptation
from reason_spec.accelerator.cores import CoreAllocator, available_cores, share_out_cores
from reason_spec.accelerator.engine_drafter import only_drafts_tokens, with_drafter
from reason_spec.accelerator.verifier_models import models_to_ask
from reason_spec.engines.base import Engine
from reason_spec.engines.weights import identify_model
from reason_spec.errors import EngineError, SettingsError
from reason_spec.routers.base import PairIdentity, Router, create_router
from reason_spec.settings import RouterSettings, Settings, VerifierSettings
from reason_spec.strategies.factory import strategy_class
from reason_spec.strategies.suffix_session import SuffixCacheSessions
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.verifiers.base import Verifier, create_verifier, thresholds_of

logger = logging.getLogger(__name__)


class Engines(NamedTuple):
    """The two models; ``draft`` is None where no strategy needs it."""

    target: Engine
    draft: Engine | None


def create_engines(settings: Settings, strategies: Sequence[str]) -> Engines:
    """Make the engines that strategies need; models are loaded by `ModelBundle.start`.

    Raises:
        EngineError, MissingDependencyError: as `create_engine`.
    """
    from reason_spec.engines.factory import create_engine

    with_draft = any(strategy_class(name).needs_draft for name in strategies)
    if with_draft and only_drafts_tokens(settings):
        writers = ", ".join(name for name in strategies if strategy_class(name).needs_draft)
        raise EngineError(
            f"draft {settings.draft.model!r} drafts tokens inside the target, and {writers} needs a draft "
            "model that writes on its own: use strategy self_speculative, or name a draft model"
        )
    every = available_cores()
    cores = share_out_cores(settings, every, with_draft)
    suffix = settings.suffix if settings.suffix.use in ("tokens", "both") else None
    # Libraries keep what they find at the start: OpenMP the number of cores, vLLM the threads of a product.
    of_target = with_drafter(settings).model_copy(update={"cores": settings.target.cores or every})
    target = create_engine("target", of_target, suffix)
    if not with_draft:
        return Engines(target, None)
    with_cores = settings.draft.model_copy(update={"cores": cores.draft})
    return Engines(target, create_engine("draft", with_cores, suffix, texts_of=settings.target))


class ModelBundle:
    """Loads, owns and frees models; any number of generators use them at once.

    Verifiers and routers are made when they are first asked for. Verifiers that differ in thresholds alone
    share their models.

    Args:
        settings: the settings the models are loaded with.
        verifier: one more verifier to start and close.
    """

    def __init__(
        self, settings: Settings, target: Engine, draft: Engine | None, verifier: Verifier | None = None
    ) -> None:
        self.settings = settings
        self.target = target
        self.draft = draft
        every = available_cores()
        shares = share_out_cores(settings, every, draft is not None)
        fixed = settings.target.cores
        self.cores = CoreAllocator(
            target, beside_draft=shares.target, every=fixed or every, is_fixed=fixed is not None
        )
        self.suffix_sessions: SuffixCacheSessions | None = None
        """The suffix cache; opened by `start`, None without one."""
        self.adaptation: DraftAdaptation | None = None
        """Adapts the draft to the answers; set by a server, None without it."""
        self.is_started = False
        self._given_verifier = verifier
        self._verifiers: dict[tuple[str, str], Verifier] = {}
        self._routers: dict[RouterSettings, Router] = {}

    async def start(self) -> None:
        """Start engines and verifiers side by side, and open the suffix cache.

        Raises:
            EngineError: one of them could not start; the others are freed again.
        """
        try:
            results = await asyncio.gather(*(part.start() for part in self._parts), return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            if failures:
                raise failures[0]
            await self.cores.use(self.cores.beside_draft)
            if self.settings.suffix.use != "none":
                self.suffix_sessions = await asyncio.to_thread(self._open_suffix_sessions)
        except BaseException:
            # A start that is cancelled, too: what has started by then holds its memory.
            await self.close()
            raise
        self.is_started = True

    async def close(self) -> None:
        """Stop everything and save the suffix cache; may be called twice."""
        self.is_started = False
        adaptation, self.adaptation = self.adaptation, None
        if adaptation is not None:
            await adaptation.close()
        await self.cores.close()
        sessions, self.suffix_sessions = self.suffix_sessions, None
        if sessions is not None:
            await asyncio.to_thread(sessions.save)
        await asyncio.gather(*(part.close() for part in self._parts), return_exceptions=True)

    @property
    def engines(self) -> tuple[Engine, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def _parts(self) -> list[Engine | Verifier]:
        given = () if self._given_verifier is None else (self._given_verifier,)
        return [*self.engines, *given, *self._verifiers.values()]

    def verifier(self, name: str, settings: VerifierSettings) -> Verifier:
        """Return the verifier of that name with the thresholds of the settings.

        Raises:
            SettingsError: there is no such verifier, or a threshold belongs to none of its parts.
        """
        bare = settings.model_copy(update={"threshold": None, "thresholds": {}})
        key = (name, bare.model_dump_json())
        if key not in self._verifiers:
            models = models_to_ask(self.settings, self.target, self.cores.beside_draft)
            self._verifiers[key] = create_verifier(name, bare, models)
        return self._verifiers[key].with_thresholds(thresholds_of(settings, name))

    def router(self, settings: RouterSettings) -> Router:
        """Return the router that the settings name.

        Raises:
            SettingsError: there is none of that name, or it was trained on other models, or it needs what
                the draft's engine does not report.
            DataError: its file is missing or damaged.
        """
        if settings not in self._routers:
            models = (
                identify_model("target", self.settings.target),
                identify_model("draft", self.settings.draft),
            )
            router = create_router(settings, PairIdentity(*models))
            if router.reads_entropy and not (self.draft and self.draft.reports_entropy):
                raise SettingsError(
                    f"router.name = {settings.name!r} needs the entropy of the draft, which the engine "
                    f"draft.kind = {self.settings.draft.kind!r} does not report: use torch for the draft"
                )
            self._routers[settings] = router
        return self._routers[settings]

    async def reset_prefix_caches(self) -> None:
        """Let the engines forget all cached prefixes."""
        for engine in self.engines:
            await engine.reset_prefix_cache()

    def _open_suffix_sessions(self) -> SuffixCacheSessions | None:
        try:
            model = identify_model("target", self.settings.target)
            caches = open_caches(self.settings.suffix, StoreKey(model, self.target.tokenizer.tokenizer_id))
        except Exception as error:
            logger.warning("nothing is proposed from earlier texts: %s: %s", type(error).__name__, error)
            return None
        return SuffixCacheSessions(self.settings.suffix, caches, self.target, self.draft)
