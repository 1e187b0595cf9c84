"""The one settings tree: defaults are written here and nowhere else.

Precedence, weakest first: default, settings file, environment (``REASON_SPEC_TARGET__MODEL=...``),
command-line flag. Unknown names are refused.
"""

from reason_spec.settings.engines import DTypeName, EngineKind, EngineSettings, RemoteSettings, VllmSettings
from reason_spec.settings.exit import NO_EXIT, ExitRuleName, ExitSettings
from reason_spec.settings.loading import ENV_PREFIX, load_settings
from reason_spec.settings.server import API_KEY_VARIABLE, PredictedCallsSettings, ServerSettings
from reason_spec.settings.strategy import (
    CueSettings,
    LoadControlSettings,
    RouterSettings,
    SpeculationMode,
    StrategySettings,
    VerifierSettings,
)
from reason_spec.settings.suffix import SuffixSettings
from reason_spec.settings.tokens import BoundarySettings, SamplingSettings, TaskSettings, ThinkingSettings
from reason_spec.settings.tree import Settings

__all__ = [
    "API_KEY_VARIABLE",
    "ENV_PREFIX",
    "NO_EXIT",
    "BoundarySettings",
    "CueSettings",
    "DTypeName",
    "EngineKind",
    "EngineSettings",
    "ExitRuleName",
    "ExitSettings",
    "LoadControlSettings",
    "PredictedCallsSettings",
    "RemoteSettings",
    "RouterSettings",
    "SamplingSettings",
    "ServerSettings",
    "Settings",
    "SpeculationMode",
    "StrategySettings",
    "SuffixSettings",
    "TaskSettings",
    "ThinkingSettings",
    "VerifierSettings",
    "VllmSettings",
    "load_settings",
]
