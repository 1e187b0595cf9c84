"""The draft model inside a target's engine, by its name in the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import platformdirs

from reason_spec.engines.torch.eagle_drafts import EagleDrafts
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.layer_skipping import LayerSkipping
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.token_drafts import DraftModel
from reason_spec.engines.weights import digest_folder
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import SELF_DRAFT


def load_drafter(settings: EngineSettings, model: Model, report: Callable[[str], None]) -> DraftModel | None:
    """Return the draft model that the settings name; None where they name none.

    Raises:
        EngineError: the head cannot be loaded, or was made for another model.
        UnsupportedModelError: the model's layers are not made like Llama's.
    """
    name = settings.drafter
    if name is None:
        return None
    if name != SELF_DRAFT:
        report("loading the head")
        return EagleDrafts(name, EagleHead.load(Path(name).expanduser()), model, settings.cache_tokens)
    folder = Path(settings.model)
    kept = None
    if folder.is_dir():
        kept = (
            platformdirs.user_cache_path("reason-spec")
            / "layer_skipping"
            / f"{digest_folder(folder)[:16]}.json"
        )
    return LayerSkipping(settings.model, model, kept)
