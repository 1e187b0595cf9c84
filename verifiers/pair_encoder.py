"""The encoder of the verifier ``semantic``: how likely two steps of one solution say the same."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from reason_spec.errors import SettingsError
from reason_spec.shipped import shipped_weights
from reason_spec.verifiers.batching import Batcher
from reason_spec.verifiers.evidence import Evidence, find_evidence
from reason_spec.verifiers.words import stem

if TYPE_CHECKING:
    import onnxruntime
    import tokenizers

MAX_TOKENS: Final = 256
MODEL, TOKENIZER, CONFIG = "model.onnx", "tokenizer.json", "calibration.json"
_QUESTION_CHARS: Final = 100
"""The end of the question: what is asked stands there."""
_CLS, _SEP = "[CLS]", "[SEP]"
_SPECIAL: Final = re.compile(r"\[(CLS|SEP|PAD|UNK|MASK)\]")


class Input(NamedTuple):
    """What the encoder reads: token ids, and for each whether its word is in one step only (1) or not (0)."""

    ids: list[int]
    types: list[int]


def encode_pair(tokenizer: tokenizers.Tokenizer, question: str, drafted: str, target: str) -> Input:
    """Return ``[CLS] question [SEP] drafted [SEP] target [SEP]``, of the question the end.

    The second row of BERT's segment embeddings marks words that the other step has not got. The encoder need
    not find out which words differ, only whether it matters.
    """
    question = question.strip()
    if len(question) > _QUESTION_CHARS:
        question = question[-_QUESTION_CHARS:].partition(" ")[2]
    texts = [_one_line(text) for text in (question, drafted, target)]
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    words = [_words(part, text) for part, text in zip(parts[1:], texts[1:], strict=True)]
    known = [set(row) for row in words]
    marks = [
        [0] * len(parts[0].ids),
        [int(word not in known[1]) for word in words[0]],
        [int(word not in known[0]) for word in words[1]],
    ]
    cls, sep = (_id(tokenizer, token) for token in (_CLS, _SEP))
    ids, types = [cls], [0]
    for part, marked in zip(parts, marks, strict=True):
        ids += [*part.ids, sep]
        types += [*marked, 0]
    return Input(ids, types)


def _words(encoding: tokenizers.Encoding, text: str) -> list[str]:
    """Return the word that each token is in, in small letters and without endings of plural and tense."""
    spans: dict[int | None, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        spans[word] = (min(start, spans.get(word, (start, end))[0]), end)
    stems = {word: stem(text[start:end].lower()) for word, (start, end) in spans.items()}
    return [stems[word] for word in encoding.word_ids]


def _id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise SettingsError(f"the encoder's tokenizer has no {token}: it is none of BERT's")
    return found


def _one_line(text: str) -> str:
    # A separator inside a step would let its text decide where the other one begins.
    return " ".join(_SPECIAL.sub(r"( \1 )", text).split())


@dataclass(frozen=True, slots=True)
class Calibration:
    """Turns a logit and what rules see into a probability, by logistic regression.

    ``weights`` belong to the fields of `Evidence`; one without a weight does not count. ``threshold`` is the
    least probability at which a step is accepted.
    """

    slope: float
    offset: float
    threshold: float
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Calibration:
        """Read what ``dataclasses.asdict`` gave.

        Raises:
            ValueError, TypeError, AttributeError: the fields are others.
        """
        given = dict(fields)
        weights = {name: float(weight) for name, weight in given.pop("weights", {}).items()}
        if unknown := weights.keys() - set(Evidence._fields):
            raise ValueError(
                f"weights of evidence that this version does not look for: {', '.join(sorted(unknown))}; "
                "verifier train --start FOLDER --epochs 0 calibrates it anew"
            )
        return cls(**{key: float(value) for key, value in given.items()}, weights=weights)

    def probability(self, logit: float, evidence: Evidence) -> float:
        seen = sum(weight * getattr(evidence, name) for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, self.slope * logit + self.offset + seen))))

    def accepts(self, logit: float, evidence: Evidence) -> bool:
        return self.probability(logit, evidence) >= self.threshold


class _Triple(NamedTuple):
    question: str
    drafted: str
    target: str


class PairEncoder:
    """A cross-encoder in ONNX form, which reads both steps at once, in a thread and on one core."""

    def __init__(self, folder: Path | None = None) -> None:
        """Args:
        folder: what ``reason-spec verifier train`` wrote; None: the packaged one.
        """
        self._folder = shipped_weights("semantic") if folder is None else folder
        # A pair is read alone (`run_model`), so no call should wait for others.
        self._batcher = Batcher(self._read_batch, "pair-encoder", max_batch=1, gather_seconds=0)
        self._session: onnxruntime.InferenceSession | None = None
        self._tokenizer: tokenizers.Tokenizer | None = None
        self._calibration: Calibration | None = None
        self._load_lock = threading.Lock()

    @property
    def calibration(self) -> Calibration:
        """What the folder says, read without the model.

        Raises:
            SettingsError: the folder has none, or it is damaged.
        """
        if self._calibration is None:
            path = self._folder / CONFIG
            try:
                fields = json.loads(path.read_text(encoding="utf-8"))
                self._calibration = Calibration.of_fields(fields)
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise SettingsError(
                    f"{str(path)!r} cannot be read ({error}). Name a folder that reason-spec verifier train "
                    "wrote, or leave verifier.semantic_model out for the packaged one"
                ) from error
        return self._calibration

    async def start(self) -> None:
        """Load the model; later calls return at once.

        Raises:
            SettingsError: the folder holds no such model.
        """
        if self._session is None:
            await self._batcher.run(self._load)

    async def close(self) -> None:
        """Stop the thread and drop the model; ``start`` may follow."""
        self._session = None
        await self._batcher.close()

    async def probability(self, question: str, drafted: str, target: str) -> float | None:
        """Return the calibrated probability that both steps say the same; None if they are too long."""
        return await self._batcher.ask(_Triple(question, drafted, target))

    # --- in the encoder's thread ----------------------------------------------------------------

    def _load(self) -> None:
        with self._load_lock:
            if self._session is not None:
                return
            self._tokenizer, session = load_model(self._folder)
            _ = self.calibration
            self._session = session

    def _read_batch(self, triples: Sequence[_Triple]) -> list[float | None]:
        assert self._session is not None, "probability before start"
        assert self._tokenizer is not None
        inputs = [encode_pair(self._tokenizer, *triple) for triple in triples]
        logits = run_model(self._session, inputs)
        return [
            None
            if np.isnan(logit)
            else self.calibration.probability(
                float(logit), find_evidence(triple.drafted, triple.target, triple.question)
            )
            for triple, logit in zip(triples, logits, strict=True)
        ]


def check_folder(folder: Path) -> None:
    """Check that a folder has the files of an encoder, without reading them.

    Raises:
        SettingsError: one is missing.
    """
    for name in (MODEL, TOKENIZER, CONFIG):
        if not (folder / name).is_file():
            raise SettingsError(f"{str(folder)!r} holds no encoder of reason-spec verifier train: no {name}")


def load_model(folder: Path) -> tuple[tokenizers.Tokenizer, onnxruntime.InferenceSession]:
    """Load a tokenizer and a model that uses one core.

    Raises:
        SettingsError: the folder has not got both, or they cannot be read.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Without VNNI instructions sums of products of 8 bits would saturate, and the logits be others.
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        session = onnxruntime.InferenceSession(
            str(folder / MODEL), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise SettingsError(
            f"{str(folder)!r} holds no encoder of step pairs ({error}). Name a folder that reason-spec "
            "verifier train wrote, or leave verifier.semantic_model out for the packaged one"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, session


def run_model(
    session: onnxruntime.InferenceSession, inputs: Sequence[Input]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the logits of inputs, [n]; NaN for one of more than `MAX_TOKENS`.

    One at a time: activations are rounded to 8 bits by their range, and in a batch that of the others would
    change a verdict.
    """
    logits = np.full(len(inputs), np.nan)
    for index, given in enumerate(inputs):
        if len(given.ids) <= MAX_TOKENS:
            ids, types = np.array([given.ids], np.int64), np.array([given.types], np.int64)
            (found,) = session.run(None, {"ids": ids, "mask": np.ones_like(ids), "types": types})
            logits[index] = found[0]
    return logits
