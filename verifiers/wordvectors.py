"""Texts as weighted means of a model's token vectors, which decide most rewordings without the model.

A sentence model begins with a table of one vector for each token. The mean of a text's vectors, rare tokens
weighted more (Arora et al. 2017), follows the model's cosine closely where the words are mostly the same, for
a hundredth of its cost. It ignores word order and negation: use it only after the guards.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

_SMOOTHING: Final = 1e-4
"""Tokens much more frequent than this share of a text count less."""


class WordVectors:
    """The token vectors of a sentence model whose vocabulary is ordered by frequency, as BERT's is."""

    def __init__(self, model: SentenceTransformer) -> None:
        from tokenizers import Tokenizer

        # A copy: another thread changes padding and truncation of the model's own.
        self._tokenizer = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        table = model[0].auto_model.get_input_embeddings().weight.detach().numpy()
        ranks = np.arange(len(table))
        frequencies = 1 / ((ranks + 2.7) * math.log(len(table)))
        self._weights = (_SMOOTHING / (_SMOOTHING + frequencies)).astype(np.float32)
        self._table: NDArray[np.float32] = table
        self._vector = lru_cache(maxsize=8192)(self._mean)

    def cosine(self, a: str, b: str) -> float:
        """Return the cosine of the weighted means, 0 for a text without tokens."""
        return float(self._vector(a) @ self._vector(b))

    def _mean(self, text: str) -> NDArray[np.float32]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        total = self._weights[ids] @ self._table[ids]
        norm = float(np.linalg.norm(total))
        return total / norm if norm else total
