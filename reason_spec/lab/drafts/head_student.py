"""A head that is trained on its own drafts (EAGLE-3, arXiv 2503.01840, section 3: training-time test).

In draft step s the head sees, for every place at once, what it would see after s drafted tokens: features of
the target up to s places before, then its own hidden states. Its loss is the cross-entropy to the target's
distribution over the predicted tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reason_spec.engines.eagle_files import CONFIG, WEIGHTS, HeadConfig, middle_layers, vllm_config
from reason_spec.engines.machine import mixed_precision
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.sublayers import layers_of
from reason_spec.errors import DataError
from reason_spec.lab.drafts.objectives import Loss
from reason_spec.lab.drafts.schedule import Objective
from reason_spec.lab.drafts.student import Agreement, load_target
from reason_spec.lab.drafts.texts import IGNORED, PaddedBatch, TrainingText

NUM_STEPS: Final = 4
"""Draft steps of the training."""
STEP_WEIGHT: Final = 0.8
"""Weight of the loss of a draft step over that of the one before."""

_STATE_DTYPE = torch.bfloat16
_STATE_BYTES: Final = 4 << 30
"""Memory for the target's states of texts that were seen: those of a million tokens of a width of 576."""


class _DraftAttention:
    """Attention of one draft step over the keys and values of all steps so far.

    A query of step s at place j sees the keys of step 0 up to place j - s, and of each step i = 1 ... s the
    key of place j - s + i: those of the tokens that were drafted before it.
    """

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with [texts, places, heads, head size]; the keys and values are kept for later steps.

        Later steps may begin at a later place.
        """
        repeats = query.shape[2] // key.shape[2]
        self._keys.append(key.repeat_interleave(repeats, 2))
        self._values.append(value.repeat_interleave(repeats, 2))
        step, places, num_keys = len(self._keys) - 1, query.shape[1], self._keys[0].shape[1]
        scale = query.shape[-1] ** -0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", query, self._keys[0]) * scale
        seen = torch.ones(places, num_keys, dtype=torch.bool, device=query.device)
        seen = seen.tril(num_keys - places - step)
        # The first token has no feature before it, and no key. Padding is after all that counts.
        seen[:, 0] = False
        if step == 0:
            seen[0, 0] = True
        parts = [scores.masked_fill(~seen, float("-inf"))]
        own = [
            (_shifted(self._keys[i], step - i), _shifted(self._values[i], step - i))
            for i in range(1, step + 1)
        ]
        parts += [torch.einsum("bqhd,bqhd->bhq", query, one)[..., None] * scale for one, _ in own]
        weights = torch.softmax(torch.cat(parts, -1).float(), -1).to(query.dtype)
        output = torch.einsum("bhqk,bkhd->bqhd", weights[..., :num_keys], self._values[0])
        for index, (_, one) in enumerate(own):
            output = output + weights[..., num_keys + index].transpose(1, 2)[..., None] * one
        return output


def _shifted(states: Tensor, count: int) -> Tensor:
    """Move [texts, places, ...] by ``count`` places to the right; the first ones are zero."""
    if count == 0:
        return states
    return torch.cat((torch.zeros_like(states[:, :count]), states[:, :-count]), 1)


def _cross_entropies(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the cross-entropy of each row to the wanted probabilities."""
    return -(wanted * torch.log_softmax(logits.float(), -1)).sum(-1)


class HeadStudent:
    """The head in training, and the frozen target.

    Args:
        base: folder of the target.
        name: how the target is named by users; kept in the head's configuration.
        vocabulary: ids of the tokens that it predicts, ascending; None for all.
        temperatures: those of the answers, ascending; kept in the head's configuration.
        revision: branch, tag or commit, if ``base`` is an id of Hugging Face.
        trust_remote_code: run code that comes with the target.

    Raises:
        EngineError: the target cannot be loaded.
        UnsupportedModelError: its layers are not made like Llama's.
    """

    def __init__(
        self,
        base: str,
        name: str,
        vocabulary: Sequence[int] | None,
        device: torch.device,
        *,
        temperatures: Sequence[float] = (),
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        module = load_target(base, name, revision, trust_remote_code=trust_remote_code)
        layers_of(name, module)
        self.module = module.requires_grad_(False).to(device).eval()
        config = module.config
        head: Any = module.get_output_embeddings()
        num_tokens = int(head.weight.shape[0])
        predicted = torch.arange(num_tokens) if vocabulary is None else torch.tensor(list(vocabulary))
        heads = int(config.num_attention_heads)
        rope = getattr(config, "rope_parameters", None) or {}
        self.config = HeadConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=num_tokens,
            draft_vocab_size=len(predicted),
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0,
            base=name,
            temperatures=tuple(temperatures),
            eagle_aux_hidden_state_layer_ids=middle_layers(config.num_hidden_layers),
        )
        self._max_positions = int(config.max_position_embeddings)
        torch.manual_seed(0)
        self._head = EagleHead(self.config)
        with torch.no_grad():
            self._head.lm_head.weight.copy_(head.weight[predicted.to(device)].cpu())
            self._head.norm.weight.copy_(module.model.norm.weight.cpu())
        self._head.to(device)
        self._predicted = predicted.to(device)
        self._place = torch.full((num_tokens,), IGNORED, device=device)
        self._place[self._predicted] = torch.arange(len(predicted), device=device)
        self._target_head = head.weight[self._predicted]
        self._device = device
        self._states: dict[TrainingText, Tensor] = {}
        self._room = _STATE_BYTES
        self.parameters: list[nn.Parameter] = list(self._head.parameters())

    def load(self, folder: Path) -> None:
        """Take over the weights of a head that was saved with the same configuration.

        Raises:
            DataError: the head is for a target of another shape.
            EngineError: a file is missing or damaged.
        """
        saved = EagleHead.load(folder)
        for field in set(HeadConfig.model_fields) - {"base", "temperatures"}:
            theirs, own = getattr(saved.config, field), getattr(self.config, field)
            if theirs != own:
                raise DataError(
                    f"{folder / CONFIG}: {field} is {theirs}, and a head of this target has {own}"
                )
        self._head.load_state_dict(saved.state_dict())

    description: Final = "a head"
    keeps_target: Final = False
    """It is trained to the target's distribution and on its own drafts in any case."""

    def loss(self, batch: Sequence[TrainingText], objective: Objective = "cross-entropy") -> Loss:
        """Return the cross-entropy to the target's distribution.

        The loss of a token is a weighted mean over the draft steps. Tokens that the head cannot predict are
        left out.
        """
        total, weights, count = torch.zeros((), device=self._device), 0.0, 0
        for step, (logits, wanted, places) in enumerate(self.draft_steps(batch, NUM_STEPS)):
            losses = _cross_entropies(logits, wanted)[places[places != IGNORED] >= 0]
            total = total + STEP_WEIGHT**step * losses.sum()
            weights += STEP_WEIGHT**step
            count = count or len(losses)
        return Loss(total / weights, count)

    @torch.no_grad()
    def agreement(self, batches: Sequence[Sequence[TrainingText]], num_drafts: int) -> Agreement:
        """Measure on answers that it was not trained on; the head drafts greedily from every place."""
        total, num_tokens, num_places = 0.0, 0, 0
        accepted = [0] * num_drafts
        for batch in batches:
            right: Tensor | None = None
            for step, (logits, wanted, places) in enumerate(self.draft_steps(batch, num_drafts)):
                if step == 0:
                    losses = _cross_entropies(logits, wanted)[places[places != IGNORED] >= 0]
                    total, num_tokens = total + float(losses.sum()), num_tokens + len(losses)
                hits = torch.zeros(places.shape, dtype=torch.bool, device=self._device)
                hits[places != IGNORED] = logits.argmax(-1) == places[places != IGNORED]
                # Places follow each other: a chain continues where the one before was right.
                right = hits if right is None else hits & _shifted(right, 1)
                accepted[step] += int(right.sum())
                num_places += int((places != IGNORED).sum()) if step == 0 else 0
        return Agreement(total / max(1, num_tokens), tuple(count / max(1, num_places) for count in accepted))

    def draft_steps(self, batch: Sequence[TrainingText], count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Run the draft steps.

        Returns:
            For each step: logits [wanted places, predicted tokens], the target's probabilities of the same
            shape, and [texts, places] the place in the vocabulary of the token that came, `IGNORED` where no
            loss is wanted, -1 where the head cannot predict it.
        """
        tokens, labels, mask = (part.to(self._device) for part in PaddedBatch.of(batch))
        states, last = self._of_target(batch, tokens, mask)
        embedded = self.module.model.embed_tokens(tokens)
        target = torch.zeros(*tokens.shape, len(self._predicted), device=self._device)
        answers = labels.roll(-1, 1) != IGNORED
        target[answers] = torch.softmax(last[answers].float() @ self._target_head.T, -1)
        next_tokens = torch.full_like(tokens, IGNORED)
        next_tokens[:, :-1] = torch.where(
            labels[:, 1:] == IGNORED, IGNORED, self._place[labels[:, 1:].clamp(min=0)]
        )
        next_tokens[:, :-1] = torch.where(
            (labels[:, 1:] != IGNORED) & (next_tokens[:, :-1] == IGNORED), -1, next_tokens[:, :-1]
        )
        next_tokens[:, 0] = IGNORED
        attend = _DraftAttention()
        places = torch.arange(tokens.shape[1], device=self._device)
        # Later steps leave out what is before all answers; drafts of `count` tokens see no further back.
        first = max(0, min(len(text.prompt) for text in batch) - 1 - count)
        next_tokens, target = next_tokens[:, first:], target[:, first:]
        with mixed_precision(self._device):
            before = _shifted(self._head.features(states), 1)
        found = []
        for step in range(count):
            with mixed_precision(self._device):
                hidden = self._head(embedded, before, places, attend)
                if step == 0:
                    hidden, embedded, places = hidden[:, first:], embedded[:, first:], places[first:]
                # The first token has no feature before it, and no place in the context of the head.
                wanted_at = (next_tokens != IGNORED) & (places > step)
                logits = self._head.logits(hidden[wanted_at])
            found.append((logits, target[wanted_at], torch.where(wanted_at, next_tokens, IGNORED)))
            before = _shifted(hidden, 1)
        return found

    @torch.no_grad()
    def target_logits(self, text: TrainingText) -> Tensor:
        """Return the target's logits [answer tokens, vocabulary] at the places where the tokens came."""
        tokens, _, mask = (part.to(self._device) for part in PaddedBatch.of([text]))
        _, last = self._of_target([text], tokens, mask)
        logits: Tensor = self.module.get_output_embeddings()(last[0, len(text.prompt) - 1 : -1].float())
        return logits

    @torch.no_grad()
    def _of_target(
        self, batch: Sequence[TrainingText], tokens: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the target's states [texts, places, 3 * hidden size], and its last normed states.

        They are kept for later epochs while there is room.
        """
        known = {text: self._states[text] for text in batch if text in self._states}
        if len(known) < len(set(batch)):
            states = self._run_target(tokens, mask).to("cpu", _STATE_DTYPE)
            for row, text in enumerate(batch):
                if text not in known:
                    known[text] = states[row, : len(text)].clone()
                    self._room -= known[text].nbytes
                    if self._room >= 0:
                        self._states[text] = known[text]
        padded = nn.utils.rnn.pad_sequence([known[text] for text in batch], batch_first=True)
        features, last = (
            padded.to(self._device).float().split((3 * self.config.hidden_size, self.config.hidden_size), -1)
        )
        return features, last

    def _run_target(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the three taken states and the last normed ones [texts, places, 4 * hidden size]."""
        inner = self.module.model
        taken: dict[int, Tensor] = {}

        def tap(layer: int) -> Callable[..., None]:
            def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                taken[layer] = args[0] if args else kwargs["hidden_states"]

            return take

        hooks = [
            inner.layers[layer].register_forward_pre_hook(tap(layer), with_kwargs=True)
            for layer in dict.fromkeys(self.config.target_layers)
        ]
        try:
            with mixed_precision(self._device):
                last = inner(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([*(taken[layer] for layer in self.config.target_layers), last], -1)

    def save(self, folder: Path) -> None:
        """Write the head in the form that vLLM's method ``eagle3`` reads."""
        weights = {
            name: weight.detach().to("cpu", torch.bfloat16).contiguous()
            for name, weight in self._head.state_dict().items()
        }
        predicted = self._predicted.cpu()
        if len(predicted) < self.config.vocab_size:
            weights["d2t"] = predicted - torch.arange(len(predicted))
            weights["t2d"] = torch.isin(torch.arange(self.config.vocab_size), predicted)
        unfinished = folder / f"{WEIGHTS}.part"
        save_file(weights, unfinished, metadata={"format": "pt"})
        unfinished.replace(folder / WEIGHTS)
        config = vllm_config(self.config, self._max_positions)
        (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
