"""Pruned drafts: some layers of a base model, trained further, over its embeddings.

A folder with a draft holds `CONFIG` and `WEIGHTS`: only what differs from the base model. At the first use
both are composed into a model folder in the user's cache, which every engine loads. With a trimmed
vocabulary (FR-Spec, arXiv 2502.14856) the torch engine computes the logits of its tokens alone: the head of a
small draft costs more than its layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reason_spec.engines.config_files import read_config_file
from reason_spec.engines.model_cache import joined_with_base
from reason_spec.engines.model_package import PREFIX, find_packaged
from reason_spec.errors import EngineError

CONFIG: Final = "pruned_draft.json"
WEIGHTS: Final = "layers.safetensors"
VOCABULARY: Final = "draft_vocabulary.json"
"""In the composed folder: the ids of the tokens that the draft predicts, ascending."""
PER_LAYER: Final = ("layer_types", "no_rope_layers")
"""Entries of a model's configuration that have an item for each layer."""
_VERSIONS: Final = "versions"
_LAYOUT: Final = 2
"""The version of the folders in the cache; older ones are not read."""


class PrunedConfig(BaseModel):
    """The content of `CONFIG`.

    Attributes:
        base: name of the base model.
        layers: the base model's layers that the draft's began as, ascending.
        vocabulary: ids of the tokens that the draft predicts, ascending; None for all.
        revision: branch, tag or commit of a base model of Hugging Face; None for its default.
        temperatures: those of the answers that it was trained on, ascending; empty where they are not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str = Field(min_length=1)
    layers: tuple[int, ...] = Field(min_length=1)
    vocabulary: tuple[int, ...] | None = None
    revision: str | None = None
    temperatures: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _ascending(self) -> PrunedConfig:
        for name in ("layers", "vocabulary"):
            numbers = getattr(self, name) or ()
            if list(numbers) != sorted(set(numbers)) or (numbers and numbers[0] < 0):
                raise ValueError(f"{name} must ascend from 0 or more")
        return self


@dataclass(frozen=True, slots=True)
class PrunedDraft:
    """A pruned draft in its folder; ``versions`` is the folder of what `draft adapt` writes."""

    folder: Path
    config: PrunedConfig
    versions: Path


def find_pruned(model: str) -> PrunedDraft | None:
    """Return the pruned draft in a folder or of a `models:` name, None where there is none.

    Raises:
        EngineError: its files cannot be used; the message names the file and the field.
    """
    packaged = find_packaged(model)
    folder = packaged or Path(model).expanduser()
    place = folder / CONFIG
    if not place.is_file():
        return None
    config = read_config_file(place, PrunedConfig, "the draft")
    if Path(config.base).expanduser().resolve() == folder.resolve():
        raise EngineError(f"{str(place)!r}: base names the draft itself; train the draft again")
    if not (folder / WEIGHTS).is_file():
        raise EngineError(f"draft {model!r} has no {WEIGHTS}; train the draft again")
    versions = folder / _VERSIONS
    if packaged is not None:
        # What is learned from users does not belong into an installed package.
        versions = platformdirs.user_data_path("reason-spec") / _VERSIONS / model.removeprefix(PREFIX)
    return PrunedDraft(folder, config, versions)


def composed(draft: PrunedDraft, base: Path) -> Path:
    """Return a model folder with the base model's files, and the draft's layers in the place of all.

    Args:
        base: the folder of the base model, with safetensors.

    Raises:
        EngineError: the draft does not fit the base model, or a file cannot be read.
    """
    return joined_with_base(
        draft.folder,
        (CONFIG, WEIGHTS),
        base,
        "reason_spec.engines.pruned_composing",
        layout=_LAYOUT,
        doing="Composing",
        failure=f"could not be composed with {draft.config.base!r}",
    )
