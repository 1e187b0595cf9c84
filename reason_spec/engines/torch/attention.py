"""Attention over slots, which replaces the attention of a transformers model.

transformers calls a registered attention by name (``AttentionInterface``) with the queries, keys and values
of the new tokens, already rotated. This one writes the keys and values to their slots, and attends over the
slots of the pass layout. transformers builds no mask for an unknown implementation, so the layout alone
defines the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from reason_spec.engines.torch.layout import Block, IntArray, PassLayout
from reason_spec.errors import EngineError

ATTENTION_NAME = "reason_spec_slots"


class KeyValueStore:
    """Keys and values of all layers, [slots + 1, key-value heads, head size] for each layer.

    The last slot stays zero, for padded columns. Tensors are allocated at a layer's first pass. Of a target
    that is the check at the start, so a lack of memory shows before requests are served; of a head it is its
    first draft.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    def num_layers(self) -> int:
        return len(self._keys)

    def write(self, layer: int, slots: Tensor | slice, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [tokens, heads, head size] keys and values; return the layer's two tensors."""
        if layer not in self._keys:
            self._keys[layer] = self._allocate(keys)
            self._values[layer] = self._allocate(values)
        if isinstance(slots, slice):
            self._keys[layer][slots] = keys
            self._values[layer][slots] = values
        else:
            self._keys[layer].index_copy_(0, slots, keys)
            self._values[layer].index_copy_(0, slots, values)
        return self._keys[layer], self._values[layer]

    def _allocate(self, like: Tensor) -> Tensor:
        try:
            return like.new_zeros((self.num_slots + 1, *like.shape[1:]))
        except (RuntimeError, MemoryError) as error:
            raise EngineError(
                f"no memory on {like.device} for the keys and values of cache_tokens={self.num_slots} "
                f"tokens; set a smaller cache_tokens ({error})"
            ) from None


def _index(slots: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(slots).to(device)


def _span_or_index(slots: IntArray, device: torch.device) -> Tensor | slice:
    """Return a slice if the slots are contiguous and in order."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return _index(slots, device)


class BlockTensors:
    """A block on the device, with one mask for each sliding window."""

    def __init__(self, block: Block, padding_slot: int, device: torch.device, dtype: torch.dtype) -> None:
        self._block = block
        self._device = device
        self._dtype = dtype
        self._num_rows = len(block.rows)
        self._num_entries = block.num_entries
        self._num_columns = block.num_columns
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}
        first, last = block.rows[0], block.rows[-1]
        self._contiguous = all(
            row.num_entries == self._num_entries and row.start == first.start + index * self._num_entries
            for index, row in enumerate(block.rows)
        )
        self._span = slice(first.start, last.end)
        self._slots = self._slots_of(block, padding_slot)
        if not self._contiguous:
            self._query_index, self._kept, self._kept_entries = self._ragged_indices()

    def _slots_of(self, block: Block, padding_slot: int) -> Tensor | slice:
        # The slots of a text alone in its row are mostly contiguous: a view, not a copy.
        if self._num_rows == 1:
            (row,) = block.rows
            return _span_or_index(row.columns, self._device) if row.span is None else row.span
        slots = np.full((self._num_rows, self._num_columns), padding_slot, dtype=np.int64)
        for index, row in enumerate(block.rows):
            slots[index, : row.num_columns] = row.columns
        return _index(slots.reshape(-1), self._device)

    @property
    def covers_in_order(self) -> bool:
        """Whether the entries have the same order in the pass, without padding."""
        return self._contiguous

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Return the output of this block's entries, [rows * longest row, heads, value size].

        Args:
            query: [entries of the pass, heads, head size].
            keys, values: the layer's slots, [slots, key-value heads, head size].
        """
        _, num_heads, head_size = query.shape
        num_kv_heads = keys.shape[1]
        rows, entries = self._num_rows, self._num_entries
        heads_each = num_heads // num_kv_heads
        if self._contiguous:
            picked = query[self._span]
        else:
            picked = query.index_select(0, self._query_index)
        # Query heads of one key-value head become rows of one head: no key is repeated.
        picked = picked.view(rows, entries, num_kv_heads, heads_each, head_size).permute(0, 2, 3, 1, 4)
        picked = picked.reshape(rows, num_kv_heads, heads_each * entries, head_size)
        block_keys, block_values = self._columns_of(keys), self._columns_of(values)
        mask = self._mask(window, heads_each)
        if softcap is None:
            attended = functional.scaled_dot_product_attention(
                picked, block_keys, block_values, attn_mask=mask, scale=scaling
            )
        else:
            attended = _softcapped_attention(picked, block_keys, block_values, mask, scaling, softcap)
        return attended.reshape(rows, num_heads, entries, -1).transpose(1, 2).flatten(0, 1)

    def put(self, attended: Tensor, output: Tensor) -> None:
        """Write the output of ``attend`` into [entries of the pass, heads, value size]."""
        if self._contiguous:
            output[self._span] = attended
        else:
            output.index_copy_(0, self._kept_entries, attended.index_select(0, self._kept))

    def _columns_of(self, layer: Tensor) -> Tensor:
        """Return [rows, key-value heads, columns, head size] of a layer's keys or values."""
        if isinstance(self._slots, slice):
            return layer[self._slots].transpose(0, 1).unsqueeze(0)
        gathered = layer.index_select(0, self._slots)
        return gathered.view(self._num_rows, self._num_columns, *layer.shape[1:]).transpose(1, 2)

    def _ragged_indices(self) -> tuple[Tensor, Tensor, Tensor]:
        index = np.zeros((self._num_rows, self._num_entries), dtype=np.int64)
        real = np.zeros((self._num_rows, self._num_entries), dtype=np.bool_)
        for number, row in enumerate(self._block.rows):
            index[number, : row.num_entries] = np.arange(row.start, row.end)
            real[number, : row.num_entries] = True
        kept = np.flatnonzero(real)
        flat = index.reshape(-1)
        return (
            torch.from_numpy(flat).to(self._device),
            torch.from_numpy(kept).to(self._device),
            torch.from_numpy(flat[kept]).to(self._device),
        )

    def _mask(self, window: int | None, heads_each: int) -> Tensor | None:
        """Return an additive mask [rows, 1, heads_each * entries, columns]; None if nothing is masked."""
        if (window, heads_each) not in self._masks:
            visible = self._visible(window)
            if visible is None:
                self._masks[window, heads_each] = None
            else:
                tiled = torch.from_numpy(visible).repeat(1, heads_each, 1).unsqueeze(1).to(self._device)
                mask = torch.zeros(tiled.shape, dtype=self._dtype, device=self._device)
                # Not -inf: a padded entry sees nothing, and its softmax must be finite.
                self._masks[window, heads_each] = mask.masked_fill_(
                    tiled.logical_not_(), torch.finfo(self._dtype).min
                )
        return self._masks[window, heads_each]

    def _visible(self, window: int | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        rows = self._block.rows
        if window is not None and all(row.column_positions.max() < window for row in rows):
            window = None
        everything_seen = all(
            row.mask is None and row.num_entries == 1 and row.num_columns == self._num_columns for row in rows
        )
        if window is None and everything_seen:
            return None
        visible = np.zeros((len(rows), self._num_entries, self._num_columns), dtype=np.bool_)
        for index, row in enumerate(rows):
            part = visible[index, : row.num_entries, : row.num_columns]
            if row.mask is not None:
                part[:] = row.mask
            else:
                part[:] = np.tri(
                    row.num_entries, row.num_columns, row.num_columns - row.num_entries, dtype=np.bool_
                )
            if window is not None:
                positions: IntArray = row.column_positions
                part &= positions[-row.num_entries :, None] - positions[None, :] < window
        return visible


Part: TypeAlias = Literal["attention", "mlp"]


class Sublayer(NamedTuple):
    """The attention or the MLP of a layer."""

    layer: int
    part: Part


class ActivePass:
    """The current pass, for the attention layers of the model."""

    def __init__(
        self,
        layout: PassLayout,
        store: KeyValueStore,
        device: torch.device,
        dtype: torch.dtype,
        skipped: frozenset[Sublayer] = frozenset(),
        tapped: Sequence[int] = (),
    ) -> None:
        self.skipped = skipped
        """Sublayers that the pass leaves out."""
        self.states: dict[int, Tensor | None] = dict.fromkeys(tapped)
        """Hidden states [tokens, hidden size] before some layers, filled in by the pass."""
        self._store = store
        self._slots = _span_or_index(np.asarray(layout.slots, dtype=np.int64), device)
        self._blocks = [BlockTensors(block, store.num_slots, device, dtype) for block in layout.blocks]
        self.num_calls = 0

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Return [tokens, heads, value size] for [tokens, heads, size] inputs."""
        keys, values = self._store.write(layer, self._slots, key, value)
        self.num_calls += 1
        outputs = [block.attend(query, keys, values, scaling, window, softcap) for block in self._blocks]
        if len(outputs) == 1 and self._blocks[0].covers_in_order:
            return outputs[0]
        output = query.new_empty((query.shape[0], query.shape[1], value.shape[2]))
        for block, attended in zip(self._blocks, outputs, strict=True):
            block.put(attended, output)
        return output


_active: ActivePass | None = None


def set_active_pass(active: ActivePass | None) -> None:
    """Set the pass of ``slot_attention``; a worker runs one at a time.

    It is a module global, because not every model passes unknown keyword arguments down.
    """
    global _active
    _active = active


def active_pass() -> ActivePass | None:
    return _active


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - part of transformers' interface
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface; see ``transformers.AttentionInterface``."""
    assert _active is not None, "the model was run outside of a pass"
    layer = module.layer_idx
    assert isinstance(layer, int)
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    attended = _active.attend(layer, query, key, value, scaling, sliding_window, softcap)
    return attended.unsqueeze(0), None


def register_attention() -> None:
    AttentionInterface.register(ATTENTION_NAME, slot_attention)


def _softcapped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.tanh(torch.matmul(query, key.transpose(2, 3)) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)
