"""Runs passes of a Hugging Face causal LM over its slots."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from reason_spec.engines.torch.attention import ActivePass, KeyValueStore, Sublayer, set_active_pass
from reason_spec.engines.torch.fused import FusedDecoder
from reason_spec.engines.torch.layout import Chain, PassBuilder, PassLayout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class StatesTap(Protocol):
    """Takes hidden states [entries, layers * hidden size] before some layers."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    def take(self, layout: PassLayout, states: Tensor) -> None: ...


@dataclass(slots=True)
class Model:
    """A loaded model and its keys and values."""

    module: PreTrainedModel
    store: KeyValueStore
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    max_context: int
    fused: FusedDecoder | None = None
    """The module's layers in few operations; None if the module runs them itself."""
    tap: StatesTap | None = None
    """Takes the hidden states of every pass over all layers."""

    def run(self, layout: PassLayout, skipped: frozenset[Sublayer] = frozenset()) -> Tensor:
        """Run one pass; return the logits [entries with logits, vocabulary].

        It writes the keys and values of all entries to their slots.

        Args:
            skipped: sublayers to leave out. Those of a module that is not fused need `prepare_sublayers`.
        """
        tapped = () if self.tap is None or skipped else self.tap.layers
        active = ActivePass(layout, self.store, self.device, self.dtype, skipped, tapped)
        tokens = torch.tensor(layout.tokens, device=self.device)
        positions = torch.tensor(layout.positions, device=self.device)
        entries = torch.tensor(layout.logits_entries, dtype=torch.long, device=self.device)
        if self.fused is not None:
            logits = self.fused.run(tokens, positions, active, entries)
        else:
            logits = self._run_module(tokens, positions, active, entries)
        num_skipped = sum(one.part == "attention" for one in skipped)
        assert active.num_calls + num_skipped == self.store.num_layers, "a layer's attention did not run"
        if self.tap is not None and tapped:
            states = [active.states[layer] for layer in tapped]
            taken = [part for part in states if part is not None]
            assert len(taken) == len(tapped), "the hidden states of a layer were not taken"
            self.tap.take(layout, torch.cat(taken, dim=-1))
        return logits

    def _run_module(self, tokens: Tensor, positions: Tensor, active: ActivePass, entries: Tensor) -> Tensor:
        set_active_pass(active)
        try:
            output = self.module(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=entries,
            )
        finally:
            set_active_pass(None)
        logits = output.logits
        assert isinstance(logits, Tensor)
        return logits[0]


def measure_single_token_pass(model: Model, context: int = 128, repeats: int = 5) -> float:
    """Return the median seconds of a pass of one token after ``context`` others."""
    context = min(context, model.max_context - 1)
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            chain = Chain([0], np.arange(context, dtype=np.int64), 0, 1, 0, 0)
            layout = PassBuilder().build([chain], [context])
            started = time.perf_counter()
            model.run(layout).argmax(-1).tolist()
            seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[repeats // 2]
