"""The exit policy: small models over the features of `reason_spec.exit.features`, and their file.

After each step the first model gives each stated value the chance that it is the answer which the text would
end with. Where it is nearly sure, a second one, fitted to such places alone, gives the chance of its choice:
what decides there is not what decides elsewhere. The thinking may stop where the chance reaches the
threshold, and the answer is that value. A policy may also name a small language model that reads the
statements along (`reason_spec.exit.statements`). The file is JSON; its numbers are checked when they are
read, and nothing in it is executed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reason_spec.errors import DataError
from reason_spec.exit.features import FEATURE_NAMES, Candidate, ExitReader
from reason_spec.exit.reading_model import Reading, ReadingModel, States, is_installed, load_reading_model
from reason_spec.exit.statements import (
    MOST_MARGIN,
    MOST_STATEMENTS,
    STATE_FEATURES,
    RatedStatement,
    Statement,
    state_features,
)
from reason_spec.routers.learned import Boosting, Logistic, read_trained

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.float64] | NDArray[np.float32]
FORMAT: Final = "reason-spec exit policy"
VERSION: Final = 2
SHIPPED: Final = Path(__file__).resolve().parent / "weights" / "policy.json"
"""The policy that ships and reads the text alone; ``weights/README.md`` names the data of both."""
SHIPPED_READING: Final = SHIPPED.with_name("reading_policy.json")
"""The policy that ships and has a small model read along."""
_RECIPE: Final = "Train one with: reason-spec exit train"

ASKED_FEATURES: Final = (
    "in_question asked asked_last now_asked now_unit now_asked_only fraction negative magnitude "
    "above_question coverage missing coverage_lead first_coverage depth depth_lead asked_only "
    "unit_share told money adds subtracts multiplies divides most_coverage question_numbers "
    "question_used question_sentences question_length asks_money asks_percent asks_kind_0 asks_kind_1 "
    "asks_kind_2 asks_kind_3 asks_kind_4"
).split()
"""Features that compare a value with the question alone. They mean the same in texts of any style, so that
solved problems without any thinking teach them."""
ASKED_COLUMNS: Final = tuple(FEATURE_NAMES.index(name) for name in ASKED_FEATURES)
_ASKED_MARGINS: Final = ("is_asked", "is_asked_lead")
MODEL_FEATURES: Final = (*FEATURE_NAMES, *_ASKED_MARGINS)
READING_FEATURES: Final = (*FEATURE_NAMES, *STATE_FEATURES, *_ASKED_MARGINS)
"""Features of a policy with a small model."""
NEARLY_SURE: Final = 0.7
"""Chance of the first model from which on the second one decides."""


class Trees:
    """All trees of a boosting side by side: ``[trees, nodes]``. A leaf leads to itself."""

    def __init__(self, boosting: Boosting) -> None:
        size = max((len(tree.value) for tree in boosting.trees), default=1)
        shape = (len(boosting.trees), size)
        self._base, self._rate = boosting.base, boosting.rate
        self._feature, self._left, self._right = (np.zeros(shape, np.intp) for _ in range(3))
        self._threshold, self._value = np.full(shape, np.inf), np.zeros(shape)
        self._depth = 0
        for row, tree in enumerate(boosting.trees):
            nodes = np.arange(len(tree.value))
            leaf = np.array(tree.left) == -1
            self._feature[row, nodes] = np.where(leaf, 0, tree.feature)
            self._threshold[row, nodes] = np.where(leaf, np.inf, tree.threshold)
            self._left[row, nodes] = np.where(leaf, nodes, tree.left)
            self._right[row, nodes] = np.where(leaf, nodes, tree.right)
            self._value[row, nodes] = tree.value
            depth = np.zeros(len(nodes), int)
            for node in nodes[~leaf]:
                depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
            self._depth = max(self._depth, int(depth.max(initial=0)))

    def margins(self, rows: Rows) -> Floats:
        """Return the log-odds of ``[rows, features]``: ``[rows]``."""
        # Thresholds lie between values of single precision.
        values = rows.astype(np.float32).astype(np.float64)
        trees = np.arange(len(self._feature))[None, :]
        node = np.zeros((len(values), trees.size), np.intp)
        places = np.arange(len(values))[:, None]
        for _ in range(self._depth):
            goes_left = values[places, self._feature[trees, node]] <= self._threshold[trees, node]
            node = np.where(goes_left, self._left[trees, node], self._right[trees, node])
        return np.asarray(self._base + self._rate * self._value[trees, node].sum(axis=1), np.float64)


class SmallReader(BaseModel):
    """A small language model that reads along, and the linear probe on its states."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str
    probe: Logistic

    def margins(self, states: States) -> Floats:
        """Return the log-odds that statements conclude the final answer: ``[statements]``."""
        probe = self.probe
        standard = (np.asarray(states, np.float64) - np.array(probe.mean)) / np.array(probe.scale)
        found = standard @ np.array(probe.weights) + probe.intercept
        return np.asarray(np.clip(found, -MOST_MARGIN, MOST_MARGIN), np.float64)

    def load(self) -> ReadingModel:
        """Return the model, loaded once.

        Raises:
            DataError: it is of another size than the probe.
            EngineError: it is not installed, or cannot be loaded.
        """
        loaded, width = load_reading_model(self.model), len(self.probe.weights)
        if loaded.width != width:
            raise DataError(
                f"the exit policy was trained with a model whose states have {width} numbers, and those of "
                f"{self.model} have {loaded.width}. {_RECIPE}"
            )
        return loaded


class ExitPolicy(BaseModel):
    """The content of a policy's file.

    ``asked`` gives the log-odds that a value is the quantity that the question asks for, from
    `ASKED_FEATURES`. ``model``, the first model, reads all features and those log-odds. ``second`` reads
    these and the log-odds of the first; None where there was too little to fit it to. ``reading`` is None in
    a policy that reads the text alone. ``trained`` describes the training data; ``questions`` has the
    `question_key` of each of its questions that is known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["reason-spec exit policy"] = FORMAT
    version: Literal[2] = VERSION
    features: tuple[str, ...]
    asked: Boosting
    model: Boosting
    second: Boosting | None = None
    reading: SmallReader | None = None
    threshold: float = Field(ge=0, le=1)
    trained: dict[str, Any] = {}
    questions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> ExitPolicy:
        names = MODEL_FEATURES if self.reading is None else READING_FEATURES
        if self.features != names:
            raise ValueError("it was trained on other features than this version has; train it again")
        fits = self.asked.fits(len(ASKED_FEATURES)) and self.model.fits(len(names))
        if self.reading is not None:
            fits = fits and self.reading.probe.fits(len(self.reading.probe.weights))
        if not fits or not (self.second is None or self.second.fits(len(names) + 1)):
            raise ValueError("the model's sizes are not those of its features")
        return self

    @cached_property
    def _trees(self) -> tuple[Trees, Trees, Trees | None]:
        return Trees(self.asked), Trees(self.model), None if self.second is None else Trees(self.second)

    @cached_property
    def _seen(self) -> frozenset[str]:
        return frozenset(self.questions)

    def has_seen(self, question: str) -> bool:
        """Return whether the policy was trained on answers to a question."""
        return question_key(question) in self._seen

    def best(
        self, candidates: Sequence[Candidate], statements: Sequence[RatedStatement] = ()
    ) -> Choice | None:
        """Return the most likely answer after a step; None before a value is stated.

        Args:
            statements: those of the text so far, where a small model reads along.
        """
        if not candidates:
            return None
        asked, model, second = self._trees
        rows = np.array([candidate.features for candidate in candidates])
        margins = asked.margins(rows[:, ASKED_COLUMNS])
        if self.reading is not None:
            read = [state_features(statements, candidate.value) for candidate in candidates]
            rows = np.column_stack((rows, np.array(read)))
        rows = with_asked(rows, margins, len(rows))
        margins = model.margins(rows)
        place = int(margins.argmax())
        best, chance = slice(place, place + 1), sigmoid(margins[place])
        if second is not None and chance >= NEARLY_SURE:
            chance = sigmoid(second.margins(with_first(rows[best], margins[best]))[0])
        return Choice(candidates[place].text, chance)

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json")) + "\n"


def question_key(question: str) -> str:
    """Return what a policy's file knows a question by; white space makes no difference."""
    return hashlib.sha256(" ".join(question.split()).encode("utf-8", "surrogatepass")).hexdigest()[:12]


class Choice(NamedTuple):
    """The answer that a text states, and the chance that it ends with it."""

    answer: str
    chance: float


def with_asked(rows: Rows, asked: Floats, *step_sizes: int) -> Rows:
    """Append the log-odds of ``asked`` and their lead over the best other candidate of the same step.

    Args:
        rows: ``[rows, features]``, the candidates of one step after those of another.
        step_sizes: the number of candidates of each step; their sum is the number of rows.
    """
    leads = np.empty(len(rows))
    start = 0
    for size in step_sizes:
        part = asked[start : start + size]
        others = np.array([np.delete(part, place).max(initial=NO_OTHER) for place in range(size)])
        leads[start : start + size] = part - others
        start += size
    return np.column_stack((rows, asked.astype(rows.dtype), leads.astype(rows.dtype)))


def with_first(rows: Rows, margins: Floats) -> Rows:
    """Append the log-odds of the first model: ``[rows, features + 1]``."""
    return np.column_stack((rows, margins.astype(rows.dtype)))


NO_OTHER: Final = -9.0
"""Log-odds of the best other candidate where there is none."""


def sigmoid(margin: float) -> float:
    return 1 / (1 + exp(-margin)) if margin >= 0 else exp(margin) / (1 + exp(margin))


class ExitMonitor:
    """Follows one thinking; `read` returns the answer where it may stop, None where it continues.

    It sees the question and the steps so far, nothing else.
    """

    def __init__(self, policy: ExitPolicy, question: str) -> None:
        self._policy = policy
        self._question = question
        self._reader = ExitReader(question)
        self._reading: Reading | None = None
        self._rated: list[RatedStatement] = []

    def read(self, step: str) -> Choice | None:
        best = self.weigh(step)
        return None if best is None or best.chance < self._policy.threshold else best

    def weigh(self, step: str) -> Choice | None:
        """Take the next step; return the most likely answer whatever its chance, None before a value.

        Raises:
            EngineError: the small model of the policy is not installed, or cannot be loaded.
        """
        candidates = self._reader.read(step)
        if self._policy.reading is not None and self._reader.statements:
            self._rate(self._policy.reading, self._reader.statements)
        return self._policy.best(candidates, self._rated)

    async def follow(self, step: str) -> Choice | None:
        """Do what `weigh` does, beside the event loop where a small model reads along."""
        if self._policy.reading is None:
            return self.weigh(step)
        return await asyncio.to_thread(self.weigh, step)

    def _rate(self, reader: SmallReader, statements: Sequence[Statement]) -> None:
        if self._reading is None:
            self._reading = reader.load().begin(self._question)
        statements = statements[: MOST_STATEMENTS - len(self._rated)]
        states = self._reading.read([statement.line for statement in statements])
        self._rated += [
            RatedStatement(statement.value, float(margin))
            for statement, margin in zip(statements, reader.margins(states), strict=False)
        ]

    @property
    def threshold(self) -> float:
        return self._policy.threshold

    @property
    def concludes(self) -> bool:
        """Whether the last step marks a conclusion."""
        return self._reader.concludes


def shipped_policy(*, text_only: bool = False) -> ExitPolicy:
    """Return the policy that ships: with a small model that reads along, where that model is installed."""
    if not text_only:
        policy = load_policy(SHIPPED_READING)
        if policy.reading is not None and is_installed(policy.reading.model):
            return policy
    return load_policy(SHIPPED)


def load_policy(path: Path = SHIPPED) -> ExitPolicy:
    """Read and check a policy.

    Raises:
        DataError: the file is missing or damaged, or of another version.
    """
    return read_trained(path, ExitPolicy, "exit policy", _RECIPE)
