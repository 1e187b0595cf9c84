"""A router trained on labelled steps: its file, and its score in a few microseconds.

`reason-spec router train` writes the file as JSON. Its numbers are checked when they are read, and nothing in
it is executed. scikit-learn trains the model; it is evaluated here without scikit-learn.
"""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reason_spec.errors import DataError, SettingsError, first_mistake
from reason_spec.routers.base import PairIdentity, Router
from reason_spec.routers.features import FEATURE_NAMES, StepFeatures

FORMAT: Final = "reason-spec router"
VERSION: Final = 1
_MAX_BYTES: Final = 16 << 20
TrainedT = TypeVar("TrainedT", bound=BaseModel)
_RECIPE: Final = "Train one with: reason-spec router collect, then reason-spec router train"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Logistic(_Part):
    """A logistic regression on standardised features: sigmoid(w (x - mean) / scale + b)."""

    kind: Literal["logistic"] = "logistic"
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float

    def fits(self, num_features: int) -> bool:
        sizes = {len(self.mean), len(self.scale), len(self.weights)}
        return sizes == {num_features} and all(scale > 0 for scale in self.scale)

    def margin(self, vector: tuple[float, ...]) -> float:
        """Return the log-odds that the model gives."""
        standard = zip(vector, self.mean, self.scale, self.weights, strict=True)
        return self.intercept + sum(weight * (x - mean) / scale for x, mean, scale, weight in standard)


class Tree(_Part):
    """A regression tree by node; ``left`` of -1 marks a leaf with its ``value``."""

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    @model_validator(mode="after")
    def _leads_downwards(self) -> Tree:
        size = len(self.value)
        if not size or {len(self.feature), len(self.threshold), len(self.left), len(self.right)} != {size}:
            raise ValueError("a tree's lists differ in length, or are empty")
        for node, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            if left != -1 and not (node < left < size and node < right < size):
                raise ValueError(f"node {node} of a tree leads to {left} and {right}")
        return self

    def evaluate(self, vector: tuple[float, ...]) -> float:
        node = 0
        while self.left[node] != -1:
            goes_left = vector[self.feature[node]] <= self.threshold[node]
            node = self.left[node] if goes_left else self.right[node]
        return self.value[node]


class Boosting(_Part):
    """Gradient boosting: the log-odds are a base and the sum of many small trees."""

    kind: Literal["boosting"] = "boosting"
    base: float
    rate: float
    trees: tuple[Tree, ...]

    def fits(self, num_features: int) -> bool:
        return all(0 <= i < num_features for tree in self.trees for i in tree.feature)

    def margin(self, vector: tuple[float, ...]) -> float:
        """Return the log-odds that the model gives."""
        # As in the training: thresholds lie between values of single precision.
        single = tuple(np.asarray(vector, np.float32).tolist())
        return self.base + self.rate * sum(tree.evaluate(single) for tree in self.trees)


class Mean(_Part):
    """The weighted sum of both models' log-odds."""

    kind: Literal["mean"] = "mean"
    logistic: Logistic
    boosting: Boosting
    weight_of_logistic: float
    weight_of_boosting: float

    def fits(self, num_features: int) -> bool:
        return self.logistic.fits(num_features) and self.boosting.fits(num_features)

    def margin(self, vector: tuple[float, ...]) -> float:
        """Return the log-odds that the models give together."""
        of_logistic = self.weight_of_logistic * self.logistic.margin(vector)
        return of_logistic + self.weight_of_boosting * self.boosting.margin(vector)


class RouterModel(_Part):
    """The content of a trained router's file.

    ``slope`` and ``intercept`` turn the model's log-odds into those of the calibrated chance (Platt 1999),
    which keeps the order of steps. ``threshold`` is the one it was trained for, ``trained`` describes the
    training data.
    """

    format: Literal["reason-spec router"] = FORMAT
    version: Literal[1] = VERSION
    pair: PairIdentity
    features: tuple[str, ...]
    model: Annotated[Logistic | Boosting | Mean, Field(discriminator="kind")]
    slope: float = Field(ge=0)
    intercept: float
    threshold: float = Field(ge=0, le=1)
    trained: dict[str, Any] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> RouterModel:
        if self.features != FEATURE_NAMES:
            raise ValueError("it was trained on other features than this version has; train it again")
        if not self.model.fits(len(self.features)):
            raise ValueError("the model's sizes are not those of its features")
        return self

    def chance(self, features: StepFeatures) -> float:
        """Return the calibrated chance that the target would write the better step."""
        margin = self.intercept + self.slope * self.model.margin(features.vector())
        return 1 / (1 + exp(-margin)) if margin >= 0 else exp(margin) / (1 + exp(margin))

    def check_pair(self, pair: PairIdentity | None, path: Path) -> None:
        """Refuse other models than those whose steps it was trained on.

        Raises:
            SettingsError: the models are others, or are not known.
        """
        if pair == self.pair:
            return
        other = "other models" if pair is None else f"another {_differing(self.pair, pair)}"
        raise SettingsError(
            f"the router in {path} was trained on {other}. {_RECIPE}; or set router.any_pair: true"
        )

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json")) + "\n"


def _differing(one: PairIdentity, other: PairIdentity) -> str:
    names = [name for name in PairIdentity._fields if getattr(one, name) != getattr(other, name)]
    return " and another ".join(names)


class LearnedRouter(Router):
    """Scores a step by a trained model's chance that the target would write a better one.

    A step without log-probabilities is scored 1.
    """

    name: str = "learned"

    def __init__(self, model: RouterModel, threshold: float | None = None) -> None:
        super().__init__(model.threshold if threshold is None else threshold)
        self._model = model

    def score(self, features: StepFeatures) -> float:
        return self._model.chance(features) if features.num_tokens else 1.0


def shipped_model() -> Path:
    """Return the router of the demonstration pair."""
    from reason_spec.pair import router_path

    return router_path()


def load_model(path: Path) -> RouterModel:
    """Read and check a trained router.

    Raises:
        DataError: the file is missing or damaged, or of another version.
    """
    return read_trained(path, RouterModel, "router", _RECIPE)


def read_trained(path: Path, kind: type[TrainedT], name: str, recipe: str) -> TrainedT:
    """Read and check a trained model in JSON.

    Args:
        name: the kind of the model, for errors.
        recipe: how to make another file, for errors.

    Raises:
        DataError: the file is missing or damaged, or of another version.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes are too many for a {name}. {recipe}")
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: no {name} can be read there ({error.strerror}). {recipe}") from None
    except ValidationError as error:
        raise DataError(f"{path}: {first_mistake(error)}. {recipe}") from None
