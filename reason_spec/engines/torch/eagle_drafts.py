"""Drafts of an EAGLE-3 head, with features, keys and values in the target's slots.

The head's keys and values of a token depend on the feature of the place before and on the token, so they
belong to the token's own slot: a prefix that requests share is shared here too. The first token of a text has
no place before it, and none in the head's context.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reason_spec.engines.torch.attention import ActivePass, KeyValueStore
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain, PassBuilder, PassLayout
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.products import pack_linears
from reason_spec.engines.torch.sublayers import prepare_sublayers
from reason_spec.engines.torch.token_drafts import DraftLane
from reason_spec.errors import EngineError

_PREFILL_CHUNK: Final = 512
"""Tokens of a text in one pass of the head: the mask of a row is quadratic in them."""


class EagleDrafts:
    """Drafts with a head; it takes the hidden states of every pass of the target.

    Raises:
        EngineError: the head was made for another model.
    """

    def __init__(self, name: str, head: EagleHead, model: Model, num_slots: int) -> None:
        embedding = model.module.get_input_embeddings().weight
        config = head.config
        num_layers = int(model.module.config.num_hidden_layers)
        if (
            embedding.shape != (config.vocab_size, config.hidden_size)
            or max(config.target_layers) >= num_layers
        ):
            raise EngineError(
                f"the head {name!r} was made for {config.base!r}, a model with {config.vocab_size} tokens "
                f"and hidden states of {config.hidden_size}; the target has {embedding.shape[0]} and "
                f"{embedding.shape[1]}. Train a head for it: reason-spec draft train --kind head"
            )
        if model.fused is None:
            prepare_sublayers(name, model.module)
        self._head = head.to(model.device, model.dtype)
        pack_linears(self._head)
        self._tokens = head.tokens.to(model.device)
        self._embedding = embedding.detach()
        self._model = model
        self._scaling = config.head_dim**-0.5
        self._features = torch.zeros(num_slots, config.hidden_size, device=model.device, dtype=model.dtype)
        self._store = KeyValueStore(num_slots)
        self._is_computed = np.zeros(num_slots, dtype=np.bool_)
        """Whether a slot has the head's keys and values of its present token."""
        model.tap = self

    @property
    def layers(self) -> tuple[int, ...]:
        return self._head.config.target_layers

    def take(self, layout: PassLayout, states: Tensor) -> None:
        slots = torch.tensor(layout.slots, device=self._model.device)
        self._features.index_copy_(0, slots, self._head.features(states))
        self._is_computed[layout.slots] = False

    def improve(self, sequences: SequenceOf[GenerationSequence], trie: PrefixTrie) -> None:
        """Do nothing: the head stays as it was trained."""

    def read(self, sequences: SequenceOf[GenerationSequence]) -> list[GenerationSequence]:
        """Read a chunk of the first long text at most; return the sequences with less than one left.

        A head that reads a long prompt at once would hold all other requests up.
        """
        ready: list[GenerationSequence] = []
        has_read = False
        for sequence in sequences:
            start = self._first_missing(sequence)
            if len(sequence.path) - start < _PREFILL_CHUNK:
                ready.append(sequence)
            elif not has_read:
                self._prefill(sequence, start)
                has_read = True
        return ready

    def run(self, lanes: SequenceOf[DraftLane]) -> Tensor:
        chains, slots, before = [], [], []
        for lane in lanes:
            path = lane.sequence.path.slots
            if lane.tokens:
                start = len(lane.sequence.tokens) + len(lane.tokens) - 1
            else:
                start = self._first_missing(lane.sequence)
            chain, own = lane.chain(1, start)
            chains.append(chain)
            slots += own
            before += [
                path[start - 1] if start <= len(path) else lane.slots[start - 1 - len(path)],
                *own[:-1],
            ]
            self._is_computed[own[: max(0, len(path) - start)]] = True
        layout = PassBuilder().build(chains, slots)
        hidden = self._hidden(layout, before)
        last = torch.tensor(layout.logits_entries, device=hidden.device)
        # Only temporary slots: those of the text keep the target's features.
        ends = torch.tensor([layout.slots[entry] for entry in layout.logits_entries], device=hidden.device)
        self._features.index_copy_(0, ends, hidden[last])
        predicted = self._head.logits(hidden[last])
        logits = predicted.new_full((len(lanes), self._model.vocab_size), float("-inf"))
        return logits.index_copy_(1, self._tokens, predicted)

    def _prefill(self, sequence: GenerationSequence, start: int) -> None:
        """Compute keys and values of the head for a chunk of the text."""
        path, end = sequence.path, start + _PREFILL_CHUNK
        chain = Chain(
            tokens=sequence.tokens.values[start:end].tolist(),
            context=path.slots[1:start],
            prefix_key=0,
            num_logits=1,
            group=0,
            shared_context=0,
            in_order=path.in_order,
        )
        slots = path.slots[start:end].tolist()
        self._hidden(PassBuilder().build([chain], slots), path.slots[start - 1 : end - 1].tolist())
        self._is_computed[slots] = True

    def _first_missing(self, sequence: GenerationSequence) -> int:
        """Return the first place that the head has not computed; the first of a text has none."""
        computed = self._is_computed[sequence.path.slots[1:]]
        return 1 + (len(computed) if computed.all() else int(np.argmin(computed)))

    def _hidden(self, layout: PassLayout, before: SequenceOf[int]) -> Tensor:
        device = self._model.device
        active = ActivePass(layout, self._store, device, self._model.dtype)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return active.attend(0, query, key, value, self._scaling, None, None)

        tokens = torch.tensor(layout.tokens, device=device)
        positions = torch.tensor(layout.positions, device=device)
        features = self._features[torch.tensor(np.asarray(before), device=device)]
        hidden: Tensor = self._head(
            functional.embedding(tokens, self._embedding), features, positions, attend
        )
        return hidden
