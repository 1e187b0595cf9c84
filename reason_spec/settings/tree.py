"""The whole settings tree, and the hash that names a run."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import model_validator

from reason_spec.settings.base import Section
from reason_spec.settings.engines import EngineSettings
from reason_spec.settings.exit import ExitSettings
from reason_spec.settings.server import ServerSettings
from reason_spec.settings.strategy import (
    LoadControlSettings,
    RouterSettings,
    StrategySettings,
    VerifierSettings,
)
from reason_spec.settings.suffix import SuffixSettings
from reason_spec.settings.tokens import BoundarySettings, SamplingSettings, TaskSettings, ThinkingSettings


class Settings(Section):
    """Everything that decides what a run does, and how it is served; its hash names the run."""

    target: EngineSettings = EngineSettings()
    draft: EngineSettings = EngineSettings()
    strategy: StrategySettings = StrategySettings()
    verifier: VerifierSettings = VerifierSettings()
    router: RouterSettings = RouterSettings()
    exit: ExitSettings = ExitSettings()
    load_control: LoadControlSettings = LoadControlSettings()
    suffix: SuffixSettings = SuffixSettings()
    sampling: SamplingSettings = SamplingSettings()
    thinking: ThinkingSettings = ThinkingSettings()
    boundary: BoundarySettings = BoundarySettings()
    task: TaskSettings = TaskSettings()
    server: ServerSettings = ServerSettings()

    @model_validator(mode="after")
    def _cores_do_not_overlap(self) -> Settings:
        shared = set(self.target.cores or ()) & set(self.draft.cores or ())
        if shared:
            raise ValueError(f"target.cores and draft.cores share {sorted(shared)}; give each its own")
        return self

    @property
    def hash(self) -> str:
        """A short hash over the `identifying` values; it is equal on every machine."""
        canonical = json.dumps(identifying(self.model_dump(mode="json")), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def identifying(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dumped settings without those that may change within a run.

    These are ``server``, the addresses of engines and ``hang_timeout``. Of ``verifier.reward_url`` it keeps
    whether there is a server at all, which decides the model that the rewards are from.
    """
    kept = copy.deepcopy({name: section for name, section in values.items() if name != "server"})
    # A folder of an earlier version may lack some of these.
    verifier = kept.setdefault("verifier", {})
    for engine in (kept.get("target"), kept.get("draft"), verifier.get("judge")):
        if engine is not None:
            engine.pop("hang_timeout", None)
            engine.get("remote", {}).pop("base_urls", None)
    verifier["reward_url"] = bool(verifier.get("reward_url"))
    return kept
