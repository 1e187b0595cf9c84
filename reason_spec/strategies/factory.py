"""Strategies by name."""

from __future__ import annotations

from reason_spec.engines.base import Engine
from reason_spec.errors import unknown_name
from reason_spec.routers.base import Router
from reason_spec.settings import StrategySettings
from reason_spec.strategies.arbitrage import Arbitrage
from reason_spec.strategies.autoregressive import (
    Autoregressive,
    DraftModelSpeculation,
    PromptLookup,
    SelfSpeculation,
    TokenRecycling,
)
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.oracle import Oracle
from reason_spec.strategies.scot import Scot
from reason_spec.strategies.specreason import Atts, Hybrid, Rsd, SpecReason
from reason_spec.strategies.speculative_thinking import SpeculativeThinking
from reason_spec.strategies.ssr import Ssr
from reason_spec.verifiers.base import Verifier

_STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        Autoregressive,
        PromptLookup,
        TokenRecycling,
        DraftModelSpeculation,
        SelfSpeculation,
        Lookahead,
        SpecReason,
        Rsd,
        Atts,
        Hybrid,
        Arbitrage,
        SpeculativeThinking,
        Scot,
        Ssr,
        Oracle,
    )
}


def strategy_names() -> list[str]:
    return list(_STRATEGIES)


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy of that name.

    Raises:
        SettingsError: there is none.
    """
    if name not in _STRATEGIES:
        raise unknown_name("strategy", name, _STRATEGIES)
    return _STRATEGIES[name]


def create_strategy(
    settings: StrategySettings,
    target: Engine,
    draft: Engine | None,
    verifier: Verifier | None,
    router: Router | None = None,
) -> Strategy:
    """Return the strategy that the settings name."""
    return strategy_class(settings.name)(settings, target, draft, verifier, router)
