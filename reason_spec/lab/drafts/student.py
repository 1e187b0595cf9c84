"""A draft that begins as some layers of the target and shares its embeddings and its head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.engines.pruned import CONFIG, WEIGHTS, PrunedConfig
from reason_spec.errors import DataError, UnsupportedModelError
from reason_spec.lab.drafts.texts import IGNORED, PaddedBatch, TrainingText


class Agreement(NamedTuple):
    """How a draft agrees with answers of the target.

    ``loss`` is the mean cross-entropy in nats a token, ``accepted`` the share of positions from which 1, 2,
    ... drafted tokens in a row are the target's (greedy drafts).
    """

    loss: float
    accepted: tuple[float, ...]

    @property
    def tokens_per_pass(self) -> float:
        """Expected tokens of a target pass that verifies as many greedy draft tokens as were measured."""
        return 1.0 + sum(self.accepted)


def evenly_spread(num_layers: int, count: int) -> tuple[int, ...]:
    """Return ``count`` layers from the first to the last one."""
    if count == 1:
        return (num_layers - 1,)
    return tuple(sorted({round(place * (num_layers - 1) / (count - 1)) for place in range(count)}))


class Student:
    """The trained layers, and the target's weights around them.

    Args:
        base: folder of the target.
        name: how the target is named by users; kept in the draft's configuration.
        layers: the target's layers that it begins as, ascending.
        vocabulary: ids of the tokens that it predicts, ascending; None for all.

    Raises:
        UnsupportedModelError: the target's layers are not where Llama's are.
    """

    def __init__(
        self,
        base: str,
        name: str,
        layers: Sequence[int],
        vocabulary: Sequence[int] | None,
        device: torch.device,
    ) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        module: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        inner: Any = getattr(module, "model", None)
        if not isinstance(getattr(inner, "layers", None), nn.ModuleList) or not hasattr(inner, "norm"):
            raise UnsupportedModelError(
                f"model {name!r} ({type(module).__name__}) has no list of layers like Llama's, so no draft "
                "can be pruned from it"
            )
        self.config = PrunedConfig(
            base=name, layers=tuple(layers), vocabulary=None if vocabulary is None else tuple(vocabulary)
        )
        module.requires_grad_(False)
        inner.layers = nn.ModuleList([inner.layers[layer] for layer in layers])
        for index, layer in enumerate(inner.layers):
            for part in layer.modules():
                if hasattr(part, "layer_idx"):
                    part.layer_idx = index
        module.config.num_hidden_layers = len(layers)
        self._inner = inner.to(device)
        head = module.get_output_embeddings().to(device)
        predicted = torch.arange(head.out_features) if vocabulary is None else torch.tensor(vocabulary)
        self._place = torch.full((head.out_features,), IGNORED).index_copy_(
            0, predicted, torch.arange(len(predicted))
        )
        self._place = self._place.to(device)
        # The trimmed logits alone: most of the whole vocabulary would be minus infinity.
        self._head = (
            head.weight[predicted.to(device)],
            None if head.bias is None else head.bias[predicted.to(device)],
        )
        self._device = device
        self.parameters: list[nn.Parameter] = [*inner.layers.parameters(), *inner.norm.parameters()]
        for weight in self.parameters:
            weight.requires_grad_(True)

    def loss(self, batch: Sequence[TrainingText]) -> tuple[Tensor, int]:
        """Return the summed cross-entropy of the answers' tokens, and their number.

        Tokens outside the vocabulary are left out: the draft cannot predict them.
        """
        return self._loss(*self._predict(batch))

    @staticmethod
    def _loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        losses = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
        return losses, int((labels != IGNORED).sum())

    @torch.no_grad()
    def agreement(self, batches: Sequence[Sequence[TrainingText]], num_drafts: int) -> Agreement:
        """Measure it on answers that it was not trained on."""
        total, num_tokens, num_places = 0.0, 0, 0
        accepted = [0] * num_drafts
        for batch in batches:
            logits, labels = self._predict(batch)
            losses, count = self._loss(logits, labels)
            total, num_tokens = total + float(losses), num_tokens + count
            hits = (logits.argmax(-1) == labels).tolist()
            start = 0
            for text in batch:
                row = hits[start : start + len(text.answer)]
                start += len(text.answer)
                num_places += len(row)
                for place in range(len(row)):
                    for ahead in range(min(num_drafts, len(row) - place)):
                        if not row[place + ahead]:
                            break
                        accepted[ahead] += 1
        return Agreement(total / max(1, num_tokens), tuple(count / max(1, num_places) for count in accepted))

    def _predict(self, batch: Sequence[TrainingText]) -> tuple[Tensor, Tensor]:
        """Return logits [answer tokens, draft vocabulary] and the tokens' places in it, text after text.

        A token outside the draft's vocabulary has the place `IGNORED`.
        """
        tokens, labels, mask = (part.to(self._device) for part in PaddedBatch.of(batch))
        with torch.autocast(self._device.type, torch.bfloat16):
            states = self._inner(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
            wanted = labels[:, 1:] != IGNORED
            # The head is as large as several layers: it reads only what is needed.
            logits = functional.linear(states[:, :-1][wanted], *self._head)
        return logits, self._place[labels[:, 1:][wanted]]

    def load(self, folder: Path) -> None:
        """Take over the layers and the norm of a draft that was saved with the same configuration.

        Raises:
            DataError: the file is damaged, or has other weights.
        """
        path = folder / WEIGHTS
        own = {f"model.{name}": one for name, one in self._inner.named_parameters() if one.requires_grad}
        try:
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot be read ({error}); train the draft again") from None
        if {name: one.shape for name, one in weights.items()} != {
            name: one.shape for name, one in own.items()
        }:
            raise DataError(f"{path}: has other layers than {CONFIG} says; train the draft again")
        for name, weight in weights.items():
            own[name].data.copy_(weight)

    def save(self, folder: Path) -> None:
        """Write the draft: its own layers and norm, and its configuration."""
        weights = {
            f"model.{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
            for part in ("layers", "norm")
            for name, weight in (
                (f"{part}.{key}", value) for key, value in getattr(self._inner, part).named_parameters()
            )
        }
        unfinished = folder / f"{WEIGHTS}.part"
        save_file(weights, unfinished)
        unfinished.replace(folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(self.config.model_dump(mode="json")), encoding="utf-8")
