"""Drafts inside the target's engine: `self`, a head (EAGLE-3), or on vLLM a draft model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reason_spec.engines.eagle_files import is_head
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.model_package import find_packaged
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings, Settings
from reason_spec.settings.engines import SELF_DRAFT


def engine_drafter(settings: Settings) -> str | None:
    """Return the name of what drafts inside the target's engine, None where nothing does."""
    return settings.draft.model if only_drafts_tokens(settings) else settings.target.drafter


def only_drafts_tokens(settings: Settings) -> bool:
    """Return whether ``draft.model`` names no model that writes on its own, but `self` or a head."""
    draft = settings.draft.model
    return draft == SELF_DRAFT or is_head(drafter_folder(draft))


def drafter_folder(name: str) -> Path:
    """Return the folder of a head, which may be one of an installed package."""
    return find_packaged(name) or Path(name).expanduser()


def with_drafter(settings: Settings) -> EngineSettings:
    """Return the target's settings with the drafter that ``draft.model`` names.

    Raises:
        EngineError: the target's engine cannot draft in this way, or a draft model cannot be converted.
    """
    target, name = settings.target, engine_drafter(settings)
    if name is None:
        return target
    method = "draft_model"
    if name != SELF_DRAFT and is_head(drafter_folder(name)):
        method, name = "eagle3", str(drafter_folder(name))
    if target.kind == "torch":
        if name != SELF_DRAFT and method != "eagle3":
            raise EngineError(
                f"{settings.target.drafter!r} holds no draft head (--head, target.drafter): name a folder of "
                "reason-spec draft train --kind head, or self"
            )
        return target.model_copy(update={"drafter": name})
    if target.kind != "vllm" or name == SELF_DRAFT:
        raise EngineError(
            f"draft {name!r} drafts inside the target's engine, which engine kind {target.kind!r} cannot; "
            "use target.kind torch, or a draft model"
        )
    if method == "draft_model":
        name = resolve_model("draft", name)
    arguments: dict[str, Any] = target.vllm.arguments | {
        "speculative_config": {"model": name} | (target.vllm.arguments.get("speculative_config") or {})
    }
    own: dict[str, Any] = {"token_method": method, "arguments": arguments}
    if "draft_tokens" not in target.vllm.model_fields_set:
        own["draft_tokens"] = 3
    return target.model_copy(update={"vllm": target.vllm.model_copy(update=own)})


def with_fitting_strategy(settings: Settings) -> Settings:
    """Return the settings with strategy ``self_speculative`` where there is no other draft.

    A strategy that was named is kept, apart from ``speculative``, of which it is a kind.
    """
    strategy = settings.strategy
    is_named = "name" in strategy.model_fields_set and strategy.name != "speculative"
    has_head_alone = settings.target.drafter is not None and "model" not in settings.draft.model_fields_set
    if is_named or not (only_drafts_tokens(settings) or has_head_alone):
        return settings
    return settings.model_copy(update={"strategy": strategy.model_copy(update={"name": "self_speculative"})})
