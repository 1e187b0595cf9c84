"""A trained draft, with whose weights another training begins."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from reason_spec.engines.eagle_files import is_head
from reason_spec.engines.model_package import find_packaged
from reason_spec.engines.pruned import find_pruned
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.errors import DataError


class StartingDraft(NamedTuple):
    """``layers`` are those of the target it began as, none of a head; no ``vocabulary`` is the whole one."""

    folder: Path
    layers: tuple[int, ...]
    vocabulary: tuple[int, ...] | None


def starting_draft(name: str, kind: Literal["model", "head"], target: str) -> StartingDraft:
    """Find the draft that a training begins with.

    Args:
        name: its folder, or a ``models:`` name.
        target: how drafts of this training name their target.

    Raises:
        DataError: there is no draft of this kind, or it drafts for another target.
        EngineError: its files are damaged.
    """
    if kind == "head":
        folder = find_packaged(name) or Path(name).expanduser()
        if not is_head(folder):
            raise DataError(f"--start-from {name}: this is no head; give a folder of draft train --kind head")
        head = EagleHead.load(folder)
        tokens = tuple(head.tokens.tolist())
        found = StartingDraft(folder, (), tokens if len(tokens) < head.config.vocab_size else None)
        base = head.config.base
    else:
        draft = find_pruned(name)
        if draft is None:
            raise DataError(f"--start-from {name}: this is no draft model; give a folder of draft train")
        found = StartingDraft(draft.folder, draft.config.layers, draft.config.vocabulary)
        base = draft.config.base
    # Heads of other programs do not name their target.
    if base not in ("", target):
        raise DataError(f"--start-from {name}: it drafts for {base}, and --target is {target}")
    return found
