"""Online adaptation of the draft: keeps the target's answers, and tries the versions learned from them.

The idea is that of Online Speculative Decoding (arXiv 2310.07177). The training is a process of its own,
`reason_spec.lab.drafts.adapting`. A version is tried on live requests: it stays unless the share of draft
tokens that the target accepts falls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from reason_spec.accelerator.answer_store import AnswerStore, StoredAnswer
from reason_spec.control.budget import SpeculationBudget
from reason_spec.engines.base import Engine
from reason_spec.engines.draft_versions import DraftVersion, DraftVersions, VersionVerdict
from reason_spec.engines.pruned import PrunedDraft, find_pruned
from reason_spec.engines.weights import identify_model
from reason_spec.errors import EngineError, ReasonSpecError, SettingsError
from reason_spec.settings import Settings
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.types import Step

if TYPE_CHECKING:
    from reason_spec.engines.torch.engine import TorchEngine

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["accepted", "rejected", "refused"]
"""Of a version: it stays, it was accepted less often, or it could not be loaded."""
WINDOW: Final = 32
"""Answers that are compared before and after a new version."""
_FEWEST = 8
"""Answers after which a version may be rejected before the window is full."""
_WORSE, _MUCH_WORSE = -1.64, -3.0
"""Differences in standard errors: rejected at the end of the window (one in twenty by chance), and within
it, where it is looked at after every answer."""
_LEAST_VARIANCE = 1e-4
_CHECK_SECONDS = 2.0


def draft_to_adapt(settings: Settings, strategy: Strategy) -> PrunedDraft:
    """Return the draft that a server with ``server.learn_folder`` adapts.

    Raises:
        SettingsError: the draft is not one of ``draft train``, or the strategy may change the target's words.
    """
    draft = find_pruned(settings.draft.model) if settings.draft.kind == "torch" else None
    if draft is None or not strategy.needs_draft:
        raise SettingsError(
            "server.learn_folder is set, and there is no draft to adapt: name one that 'draft train' made "
            "with --draft, and a strategy that uses it, such as --strategy speculative"
        )
    if strategy.loss_class != "exact":
        raise SettingsError(
            "server.learn_folder is set, and only answers in the target's own words are learned; strategy "
            f"{strategy.name} may change them. Use --strategy speculative, or lookahead with --verifier exact"
        )
    return draft


async def open_adaptation(
    settings: Settings,
    draft: PrunedDraft,
    target: Engine,
    engine: Engine | None,
    on_outcome: Callable[[Outcome], None],
) -> DraftAdaptation:
    """Open the store of answers, and load the newest accepted version of the draft.

    Args:
        engine: serves the draft.
        on_outcome: called with what became of a version.

    Raises:
        DataError: the folder cannot be used.
    """
    from reason_spec.engines.torch.engine import TorchEngine

    folder, excludes = settings.server.learn_folder, settings.server.learn_excludes
    assert folder is not None
    assert isinstance(engine, TorchEngine)
    key = StoreKey(identify_model("target", settings.target), target.tokenizer.tokenizer_id)
    store = AnswerStore.create(folder, key)
    store.forget(excludes)
    adaptation = DraftAdaptation(
        store, DraftVersions(draft), target, engine, settings.suffix.tenant, excludes, on_outcome
    )
    await adaptation.start()
    adaptation.watch()
    return adaptation


class DraftAdaptation:
    """Stores answers, and tries new versions of the draft on live requests.

    Args:
        store: takes the answers.
        engine: serves the draft.
        tenant: the owner of requests without one.
        excludes: tenants whose answers are not stored.
        window: answers that are compared before and after a new version.
    """

    def __init__(
        self,
        store: AnswerStore,
        versions: DraftVersions,
        target: Engine,
        engine: TorchEngine,
        tenant: str = "default",
        excludes: Sequence[str] = (),
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        window: int = WINDOW,
    ) -> None:
        self._store = store
        self._versions = versions
        self.target = target
        self._engine = engine
        self._tenant = tenant
        self._excludes = frozenset(excludes)
        self._on_outcome = on_outcome
        self._window = window
        self._loaded = versions.original
        self._newest_tried = 0
        self._rates: deque[float] = deque(maxlen=window)
        self._rates_before: tuple[float, ...] | None = None
        """Acceptance rates under the version before; None if no version is being tried."""
        self._stores = True
        self._watching: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The number of the version that drafts now; 0: the draft itself."""
        return self._loaded.number

    async def start(self) -> None:
        """Load the newest accepted version that is not refused."""
        while (current := self._versions.current).number:
            if await self._load(current):
                return

    def watch(self) -> None:
        """Try new versions until it is closed."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self.step()
            except (ReasonSpecError, OSError) as error:
                logger.warning("versions of the draft are not tried now: %s", error)

    def begin(self, request: SolveRequest, strategy: Strategy) -> LearnedAnswer | None:
        """Return the record of an answer; None if it is not to be stored, or not the target's own words."""
        is_free = request.constraint is None and not request.logit_bias
        tenant = request.cache_key[0] or self._tenant
        if strategy.loss_class != "exact" or not is_free or tenant in self._excludes:
            return None
        return LearnedAnswer(self, request, tenant)

    def learn(self, answer: StoredAnswer) -> None:
        """Store a finished answer, and count its acceptance rate if one version drafted for all of it."""
        rate = answer.acceptance_rate
        if rate is not None and answer.version == self.version:
            self._rates.append(rate)
        if not self._stores:
            return
        try:
            self._store.add(answer)
        except ReasonSpecError as error:
            self._stores = False
            logger.warning("answers are not stored for the draft any more: %s", error)

    async def step(self) -> None:
        """Load a new version, or decide on the one that is being tried, if there are enough answers.

        Raises:
            EngineError: the draft's engine fails.
            DataError: a verdict cannot be written.
        """
        if self._engine.trouble is not None:
            return
        if self._rates_before is not None:
            await self._judge(self._rates_before)
        elif len(self._rates) == self._window and (untried := self._versions.untried) is not None:
            if untried.number <= self._newest_tried:
                return
            self._newest_tried = untried.number
            rates = tuple(self._rates)
            if await self._load(untried):
                self._rates_before = rates
                logger.info("version %d of the draft is tried", untried.number)

    async def close(self) -> None:
        """Stop; answers that end later are not stored."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self._stores = False
        self._store.close()

    async def _load(self, version: DraftVersion) -> bool:
        """Load a version; return False, and write it down, if it is refused."""
        try:
            self._versions.check(version)
            await self._engine.load_layers(version.layers)
        except EngineError as error:
            if self._engine.trouble is not None:
                raise
            logger.warning("version %d of the draft is refused: %s", version.number, error)
            self._versions.decide(version, VersionVerdict(accepted=False, reason=str(error)))
            self._on_outcome("refused")
            return False
        self._loaded = version
        self._rates.clear()
        return True

    async def _judge(self, before: tuple[float, ...]) -> None:
        after = tuple(self._rates)
        is_full = len(after) == self._window
        if len(after) < min(_FEWEST, self._window):
            return
        change = standard_errors(before, after)
        accepted = change > (_WORSE if is_full else _MUCH_WORSE)
        if accepted and not is_full:
            return
        tried, rates = self._loaded, (fmean(before), fmean(after))
        if not accepted:
            earlier = self._versions.current
            await self._engine.load_layers(earlier.layers)
            self._loaded = earlier
            self._rates = deque(before, self._window)
        self._rates_before = None
        outcome: Outcome = "accepted" if accepted else "rejected"
        reason = f"{rates[0]:.3f} of the draft tokens were accepted before, {rates[1]:.3f} with it"
        logger.info("version %d of the draft is %s: %s", tried.number, outcome, reason)
        self._on_outcome(outcome)
        verdict = VersionVerdict(accepted=accepted, reason=reason, rate_before=rates[0], rate=rates[1])
        self._versions.decide(tried, verdict)


class LearnedAnswer:
    """Collects an answer while it is written. One that is not finished is dropped."""

    def __init__(self, adaptation: DraftAdaptation, request: SolveRequest, tenant: str) -> None:
        self._adaptation = adaptation
        self._request = request
        self._tenant = tenant
        self._version = adaptation.version
        self._tokens: list[int] = []
        self._is_whole = True

    def add(self, step: Step) -> None:
        """Take the next final step. An inserted one is not the target's: nothing from it on is learned."""
        self._is_whole = self._is_whole and step.origin != "inserted"
        if self._is_whole:
            self._tokens += tokens_for(step, self._adaptation.target)

    def finish(self, budget: SpeculationBudget) -> None:
        """Store the answer; ``budget`` counted its draft tokens."""
        if not self._tokens:
            return
        answer = StoredAnswer(
            self._request.target_prompt.to_tuple(),
            tuple(self._tokens),
            self._tenant,
            self._version,
            budget.num_accepted_tokens,
            budget.num_rejected_tokens,
        )
        self._adaptation.learn(answer)


def standard_errors(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the difference of two means in its standard errors, as in Welch's test; two values at least."""
    squares = (max(variance(rates), _LEAST_VARIANCE) / len(rates) for rates in (before, after))
    return (fmean(after) - fmean(before)) / sqrt(sum(squares))
