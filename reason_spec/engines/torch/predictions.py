"""Predictions: the logits of one pass, and those that are kept for later requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reason_spec.speculation.draft_tree import NextTokens

KEPT_ENTRY = 0
"""The entry of a kept prediction."""


class Predictions:
    """Logits of some entries of a pass, with their normalizers and best tokens.

    Args:
        logits: [entries with logits, vocabulary].
        log_normalizer: their logsumexp, float32.
        best: the most likely token of each row.
        row_of: the row of each entry.
        judged: the judge's probability that the token of each row is right; None without a judge.
    """

    def __init__(
        self,
        logits: Tensor,
        log_normalizer: Tensor,
        best: list[int],
        row_of: dict[int, int],
        judged: list[float] | None = None,
    ) -> None:
        self._logits = logits
        self._log_normalizer = log_normalizer
        self._normalizers: list[float] = log_normalizer.tolist()
        self._best = best
        self._row_of = row_of
        self._judged = judged

    @classmethod
    def of_pass(cls, logits: Tensor, entries: Sequence[int], judged: list[float] | None = None) -> Self:
        """Return the predictions of a pass; ``entries`` are in the order of the rows."""
        log_normalizer = torch.logsumexp(logits.float(), dim=-1)
        row_of = {entry: row for row, entry in enumerate(entries)}
        return cls(logits, log_normalizer, logits.argmax(dim=-1).tolist(), row_of, judged)

    def __contains__(self, entry: int) -> bool:
        return entry in self._row_of

    @property
    def num_bytes(self) -> int:
        return self._logits.nbytes

    def only(self, entry: int) -> Self:
        """Return a copy of one prediction, with the entry ``KEPT_ENTRY``."""
        row = self._row_of[entry]
        logits, log_normalizer = self._logits[row : row + 1], self._log_normalizer[row : row + 1]
        return type(self)(logits.clone(), log_normalizer.clone(), [self._best[row]], {KEPT_ENTRY: 0})

    def valid(self, entries: list[int]) -> bool:
        """Return whether no logit is NaN, and not all are infinite."""
        return all(np.isfinite(self._normalizers[self._row_of[entry]]) for entry in entries)

    def best(self, entry: int) -> int:
        return self._best[self._row_of[entry]]

    def judged(self, entry: int) -> float:
        """Return the judge's probability that the token of an entry is right."""
        assert self._judged is not None, "rule judge was asked for, and the engine has no judge"
        return self._judged[self._row_of[entry]]

    def row(self, entry: int) -> npt.NDArray[np.float32]:
        return self._logits[self._row_of[entry]].float().cpu().numpy()

    def top_tokens(self, entries: Sequence[int], width: int) -> list[NextTokens]:
        """Return the most likely tokens of entries with their probabilities, in descending order."""
        rows = torch.tensor([self._row_of[entry] for entry in entries], device=self._logits.device)
        logits, tokens = torch.topk(self._logits[rows], min(width, self._logits.shape[-1]), dim=-1)
        chances = torch.exp(logits.float() - self._log_normalizer[rows, None])
        return [
            NextTokens(tuple(ids), tuple(shares))
            for ids, shares in zip(tokens.tolist(), chances.tolist(), strict=True)
        ]

    def entropy(self, entry: int) -> float:
        """Return the entropy of a prediction at temperature 1, in nats."""
        row = self._row_of[entry]
        logprobs = self._logits[row].float() - self._log_normalizer[row]
        # Forbidden tokens have a log-probability of minus infinity, and add nothing.
        return float(torch.special.entr(logprobs.exp()).sum())

    def logprobs(self, entries: list[int], tokens: list[int]) -> list[float]:
        rows = torch.tensor([self._row_of[entry] for entry in entries], device=self._logits.device)
        ids = torch.tensor(tokens, device=self._logits.device)
        chosen = self._logits[rows, ids].float() - self._log_normalizer[rows]
        result: list[float] = chosen.tolist()
        return result


class KeptPredictions:
    """Predictions by the key of the trie node that they follow; the least recently used go first.

    Keys are never used twice, so a prediction is not found after its node was evicted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_key: OrderedDict[int, Predictions] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: int) -> Predictions | None:
        prediction = self._by_key.get(key)
        if prediction is not None:
            self._by_key.move_to_end(key)
        return prediction

    def keep(self, key: int, prediction: Predictions) -> None:
        if key in self._by_key:
            self._by_key.move_to_end(key)
            return
        self._by_key[key] = prediction
        self._num_bytes += prediction.num_bytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._by_key.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def clear(self) -> None:
        self._by_key.clear()
        self._num_bytes = 0
