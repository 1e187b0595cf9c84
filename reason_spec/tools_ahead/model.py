"""The model of a call's chance: boosted trees over `reason_spec.tools_ahead.features`, and its file.

The file is JSON; its numbers are checked when they are read, and nothing in it is executed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reason_spec.exit.policy import Trees
from reason_spec.routers.learned import Boosting, read_trained
from reason_spec.tools_ahead.features import FEATURE_NAMES

SHIPPED: Final = Path(__file__).resolve().parent / "weights" / "calls.json"
"""The model that ships; ``weights/README.md`` names its data."""
_RECIPE: Final = "Train one with: python benchmarks/agent_replay.py FILE... --save-model MODEL"


class CallModel(BaseModel):
    """The content of a model's file.

    ``threshold`` is the chance from which on a call runs ahead, chosen for a precision on held-out
    conversations. ``trained`` describes the training data.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["reason-spec tools ahead"] = "reason-spec tools ahead"
    version: Literal[1] = 1
    features: tuple[str, ...]
    model: Boosting
    threshold: float = Field(ge=0, le=1)
    trained: dict[str, Any] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> CallModel:
        if self.features != tuple(FEATURE_NAMES):
            raise ValueError("it was trained on other features than this version has; train it again")
        if not self.model.fits(len(self.features)):
            raise ValueError("the model's sizes are not those of its features")
        return self

    @cached_property
    def _trees(self) -> Trees:
        return Trees(self.model)

    def chances(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """Return the chance of each row ``[rows, features]``: the call comes before its result expires."""
        if not rows:
            return []
        return [_sigmoid(margin) for margin in self._trees.margins(np.array(rows, np.float64)).tolist()]

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json")) + "\n"


def _sigmoid(margin: float) -> float:
    return 1 / (1 + exp(-margin)) if margin >= 0 else exp(margin) / (1 + exp(margin))


def load_model(path: Path = SHIPPED) -> CallModel:
    """Read and check a model.

    Raises:
        DataError: the file is missing or damaged, or of another version.
    """
    return read_trained(path, CallModel, "model of tool calls", _RECIPE)
