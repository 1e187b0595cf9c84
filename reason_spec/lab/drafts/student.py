"""A draft that begins as some layers of the target and shares its embeddings and its head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reason_spec.engines.machine import mixed_precision
from reason_spec.engines.model_files import not_loadable
from reason_spec.engines.pruned import CONFIG, PER_LAYER, WEIGHTS, PrunedConfig
from reason_spec.engines.pruned_composing import check_names, weight_names
from reason_spec.engines.torch.trimmed_head import TrimmedHead
from reason_spec.errors import DataError, UnsupportedModelError
from reason_spec.lab.drafts.objectives import Loss, cross_entropy, forward_kl
from reason_spec.lab.drafts.schedule import Objective
from reason_spec.lab.drafts.texts import IGNORED, PaddedBatch, TrainingText
from reason_spec.loading import load_causal_lm


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


def accepted_in_a_row(rows: Sequence[Sequence[bool]], num_drafts: int) -> tuple[float, ...]:
    """Return the share of positions from which the next 1, 2, ... ``num_drafts`` tokens are all right.

    Args:
        rows: for each text, whether the token drafted at each position is the target's.
    """
    accepted = [0] * num_drafts
    for row in rows:
        for place in range(len(row)):
            for ahead, is_right in enumerate(row[place : place + num_drafts]):
                if not is_right:
                    break
                accepted[ahead] += 1
    num_places = sum(map(len, rows))
    return tuple(count / max(1, num_places) for count in accepted)


def evenly_spread(num_layers: int, count: int) -> tuple[int, ...]:
    """Return ``count`` layers from the first to the last one."""
    if count == 1:
        return (num_layers - 1,)
    return tuple(sorted({round(place * (num_layers - 1) / (count - 1)) for place in range(count)}))


class Predictions(NamedTuple):
    """Logits [answer tokens, draft vocabulary], and the tokens' places in it, text after text.

    A token outside the draft's vocabulary has the place `IGNORED`.
    """

    logits: Tensor
    labels: Tensor


def pruned_copy(module: Any, layers: Sequence[int]) -> Any:
    """Return a copy of a language model that has some of its layers; embeddings and head are shared."""
    inner, whole = module.model, module.model.layers
    shared = module.get_input_embeddings(), module.get_output_embeddings()
    inner.layers = nn.ModuleList([whole[layer] for layer in layers])
    copy = deepcopy(module, {id(part): part for part in shared})
    inner.layers = whole
    for index, layer in enumerate(copy.model.layers):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = index
    copy.config.num_hidden_layers = len(layers)
    for name in PER_LAYER:
        if isinstance(kinds := getattr(copy.config, name, None), list):
            setattr(copy.config, name, [kinds[layer] for layer in layers])
    return copy


def load_target(base: str, name: str, revision: str | None, *, trust_remote_code: bool) -> Any:
    """Return the target in float32.

    Raises:
        EngineError: it cannot be loaded.
    """
    try:
        return load_causal_lm(base, torch.float32, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise not_loadable(name, error) from error


def check_layers(module: Any, name: str) -> None:
    """Check that drafts can be pruned from a model.

    Raises:
        UnsupportedModelError: its layers are not where Llama's are.
    """
    inner = getattr(module, "model", None)
    if not isinstance(getattr(inner, "layers", None), nn.ModuleList) or not hasattr(inner, "norm"):
        raise UnsupportedModelError(
            f"model {name!r} ({type(module).__name__}) has no list of layers like Llama's, so no draft "
            "can be pruned from it"
        )


def check_weights(module: Any, name: str, folder: Path, layers: Sequence[int]) -> None:
    """Check that a draft of some layers could be composed with the files of its target.

    Args:
        module: the target, with or without memory for its weights; see `check_layers`.
        folder: its files.

    Raises:
        EngineError: it has no safetensors.
        UnsupportedModelError: transformers has other names for its weights than the files.
    """
    parts = {f"layers.{place}": module.model.layers[layer] for place, layer in enumerate(layers)}
    parts["norm"] = module.model.norm
    of_draft = [f"model.{part}.{key}" for part, own in parts.items() for key, _ in own.named_parameters()]
    try:
        check_names(weight_names(folder), of_draft, len(layers))
    except ValueError as error:
        raise UnsupportedModelError(
            f"no draft can be pruned from model {name!r}: transformers has other names for its weights than "
            f"its files, as for a mixture of experts ({error}); use --kind head"
        ) from None


class Student:
    """The trained layers, and the target's weights around them.

    Args:
        base: folder of the target.
        name: how the target is named by users; kept in the draft's configuration.
        layers: the target's layers that it begins as, ascending.
        vocabulary: ids of the tokens that it predicts, ascending; None for all.
        keep_target: keep the whole target in memory, for `target_logits`.
        temperatures: those of the answers, ascending; kept in the draft's configuration.
        revision: branch, tag or commit, if ``base`` is an id of Hugging Face.
        trust_remote_code: run code that comes with the target.

    Raises:
        EngineError: the target cannot be loaded.
        UnsupportedModelError: the target's layers are not where Llama's are.
    """

    def __init__(
        self,
        base: str,
        name: str,
        layers: Sequence[int],
        vocabulary: Sequence[int] | None,
        device: torch.device,
        *,
        keep_target: bool = False,
        temperatures: Sequence[float] = (),
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        from transformers import GenerationConfig

        target = load_target(base, name, revision, trust_remote_code=trust_remote_code)
        check_layers(target, name)
        inner = target.model
        self.config = PrunedConfig(
            base=name,
            layers=tuple(layers),
            vocabulary=None if vocabulary is None else tuple(vocabulary),
            revision=revision,
            temperatures=tuple(temperatures),
        )
        self._device = device
        target.requires_grad_(False).to(device)
        head = target.get_output_embeddings()
        predicted = range(head.out_features) if vocabulary is None else vocabulary
        self._place = torch.full((head.out_features,), IGNORED, device=device)
        self._place[list(predicted)] = torch.arange(len(predicted), device=device)
        # The trimmed logits alone: most of the whole vocabulary would be minus infinity.
        self._head = TrimmedHead(head, predicted)
        self.module = pruned_copy(target, layers)
        self.module.set_output_embeddings(self._head)
        # The target's own file may ask for sampling and penalties.
        self.module.generation_config = GenerationConfig()
        self._inner = self.module.model
        self._target = inner if keep_target else None
        self.parameters: list[nn.Parameter] = [
            *self._inner.layers.parameters(),
            *self._inner.norm.parameters(),
        ]
        for weight in self.parameters:
            weight.requires_grad_(True)

    @property
    def keeps_target(self) -> bool:
        return self._target is not None

    @property
    def description(self) -> str:
        layers = self.config.layers
        return f"{len(layers)} layer{'s' if len(layers) > 1 else ''} ({', '.join(map(str, layers))})"

    def loss(self, batch: Sequence[TrainingText], objective: Objective) -> Loss:
        """Return the loss of a batch; all but ``cross-entropy`` take the kept target."""
        logits, labels = self.predict(batch)
        if objective == "cross-entropy":
            return cross_entropy(logits, labels)
        return forward_kl(logits, self.target_logits(batch), labels)

    def predict(self, batch: Sequence[TrainingText]) -> Predictions:
        """Return what it predicts at the answers' tokens."""
        return self._predict(self._inner, batch)

    @torch.no_grad()
    def target_logits(self, batch: Sequence[TrainingText]) -> Tensor:
        """Return the target's logits in the places of `predict`."""
        assert self._target is not None
        return self._predict(self._target, batch).logits

    @torch.no_grad()
    def agreement(self, batches: Sequence[Sequence[TrainingText]], num_drafts: int) -> Agreement:
        """Measure it on answers that it was not trained on."""
        total, num_tokens = 0.0, 0
        rows: list[list[bool]] = []
        for batch in batches:
            logits, labels = self.predict(batch)
            losses, count = cross_entropy(logits, labels)
            total, num_tokens = total + float(losses), num_tokens + count
            hits = (logits.argmax(-1) == labels).tolist()
            start = 0
            for text in batch:
                rows.append(hits[start : start + len(text.answer)])
                start += len(text.answer)
        return Agreement(total / max(1, num_tokens), accepted_in_a_row(rows, num_drafts))

    def _predict(self, inner: Any, batch: Sequence[TrainingText]) -> Predictions:
        tokens, labels, mask = (part.to(self._device) for part in PaddedBatch.of(batch))
        with mixed_precision(self._device):
            states = inner(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
            wanted = labels[:, 1:] != IGNORED
            # The head is as large as several layers: it reads only what is needed.
            logits = self._head.trimmed(states[:, :-1][wanted])
        return Predictions(logits, self._place[labels[:, 1:][wanted]])

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
