"""The encoder before its training: layers of MiniLM, and the part of its vocabulary that English needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from reason_spec.errors import SettingsError
from reason_spec.verifiers.batching import no_progress_bars

_NUM_FREQUENT: Final = 14_000
"""Word pieces kept, from the front of BERT's list, which is sorted by how frequent they are."""
_NUM_SPECIAL, _FIRST_CHARACTER, _FIRST_WORD = 104, 999, 1996
"""Where single characters and whole words begin in that list; special tokens come before."""
_LONGEST_PIECE: Final = 3
"""Continuations of up to so many letters are all kept, so that any word can still be written."""
_LAST_CHARACTER: Final = "\u2fff"


def prune_encoder(source: Path, output: Path, layers: Sequence[int] | None = None) -> None:
    """Write a BERT encoder with some of its layers and word pieces.

    Args:
        source: folder of the encoder, with ``tokenizer.json`` in lower case.
        layers: those to keep; None keeps all.

    Raises:
        SettingsError: the folder holds another kind of model, or has not got those layers.
    """
    model = _load_bert(source)
    if layers is None:
        layers = range(model.config.num_hidden_layers)
    if model.config.model_type != "bert" or max(layers) >= model.config.num_hidden_layers:
        raise SettingsError(f"{str(source)!r}: a BERT encoder with the layers {list(layers)} is needed")
    output.mkdir(parents=True, exist_ok=True)
    fields = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    kept = _kept_pieces(fields["model"]["vocab"])
    fields["padding"] = fields["truncation"] = None
    fields["model"]["vocab"] = {piece: place for place, (piece, _) in enumerate(kept)}
    (output / "tokenizer.json").write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, output / name)
    table = model.embeddings.word_embeddings
    rows = torch.tensor([index for _, index in kept])
    table.weight = nn.Parameter(table.weight.detach()[rows].clone())
    table.num_embeddings = model.config.vocab_size = len(kept)
    model.encoder.layer = nn.ModuleList([model.encoder.layer[index] for index in layers])
    model.config.num_hidden_layers = len(layers)
    with no_progress_bars():
        model.save_pretrained(str(output))


def _load_bert(folder: Path, **options: bool) -> Any:
    """Load an encoder; that its pooling layer is not used is no news for the screen."""
    from transformers import AutoModel
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with no_progress_bars():
            return AutoModel.from_pretrained(str(folder), local_files_only=True, **options)
    finally:
        logging.set_verbosity(verbosity)


def _kept_pieces(vocabulary: dict[str, int]) -> list[tuple[str, int]]:
    """Return the pieces kept, in their old order; the special tokens keep their places."""
    ordered = sorted(vocabulary.items(), key=lambda item: item[1])
    return [
        (piece, index)
        for piece, index in ordered
        if index < _NUM_SPECIAL
        or (_FIRST_CHARACTER <= index < _FIRST_WORD and piece <= _LAST_CHARACTER)
        or _FIRST_WORD <= index < _NUM_FREQUENT
        or (piece.startswith("##") and len(piece) <= _LONGEST_PIECE + 2 and piece <= _LAST_CHARACTER)
    ]


class PairClassifier(nn.Module):
    """Gives the logit that two steps say the same.

    A BERT encoder, and two layers on the means of its states: over all tokens, and over those whose word the
    other step has not got. MiniLM was trained for means; its first token says little.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = _load_bert(folder, add_pooling_layer=False)
        width = self.encoder.config.hidden_size
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))
        # Its vectors know more words than the pairs have; trained on, they would fit these alone.
        self.encoder.embeddings.word_embeddings.requires_grad_(False)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return logits [pairs] of inputs [pairs, tokens]."""
        states = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        pooled = [
            (states * chosen[..., None]).sum(1) / chosen.sum(1, keepdim=True).clamp(min=1)
            for chosen in (mask.to(states.dtype), types.to(states.dtype))
        ]
        logits: Tensor = self.head(torch.cat(pooled, -1))[:, 0]
        return logits
