"""The statements of stored answers as a small model reads them along, and the probe on its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reason_spec.errors import DataError
from reason_spec.exit.policy import Floats, SmallReader
from reason_spec.exit.reading import Value
from reason_spec.exit.statements import NOT_RATED, STATE_FEATURES, RatedStatement, state_features
from reason_spec.lab.exit.traces import ReadTrace
from reason_spec.routers.learned import Logistic

_STRENGTH: Final = 1e-3
"""Inverse of the L2 penalty, for some ten statements a state has numbers."""
_ROUNDS: Final = 200
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class StatementTable:
    """All statements of all answers, one row each, and where the candidates of the same answers stand.

    ``candidates`` has, for each row of `LabelledCandidates`, its step and value, by answer.
    """

    model: str
    states: NDArray[np.float32]
    final: NDArray[np.bool_]
    answer: NDArray[np.int64]
    places: tuple[tuple[int, Value], ...]
    """Step and value of each statement."""
    candidates: tuple[tuple[tuple[int, Value], ...], ...]

    @classmethod
    def of(cls, reads: Sequence[ReadTrace], model: str, finals: Sequence[Value | None]) -> StatementTable:
        """Label the statements of answers.

        Args:
            model: the small model that read along.
            finals: the final answer of each response.

        Raises:
            DataError: no answer has a statement.
        """
        states = [one.state for read in reads for one in read.statements]
        if not states:
            raise DataError("no step of these answers concludes a value: there is nothing to read along")
        numbered = [(number, one) for number, read in enumerate(reads) for one in read.statements]
        return cls(
            model,
            np.array(states, np.float32),
            np.array([one.value == finals[number] for number, one in numbered], bool),
            np.array([number for number, _ in numbered], np.int64),
            tuple((one.step, one.value) for _, one in numbered),
            tuple(
                tuple((step, one.value) for step, several in enumerate(read.candidates) for one in several)
                for read in reads
            ),
        )

    def fit_probe(self, seen: NDArray[np.bool_]) -> Logistic:
        """Fit the probe to the statements of the answers ``seen``: ``[answers]``."""
        from sklearn.linear_model import LogisticRegression

        chosen = seen[self.answer]
        states, final = self.states[chosen].astype(np.float64), self.final[chosen]
        if final.all() or not final.any():
            raise DataError("all statements conclude the final answer, or none does: no probe can be fitted")
        mean, scale = states.mean(axis=0), np.maximum(states.std(axis=0), 1e-6)
        fitted = LogisticRegression(C=_STRENGTH, max_iter=_ROUNDS).fit((states - mean) / scale, final)
        return Logistic(
            mean=_rounded(mean),
            scale=_rounded(scale),
            weights=_rounded(fitted.coef_[0]),
            intercept=round(float(fitted.intercept_[0]), _DIGITS),
        )

    def cross_rated(self, seen: NDArray[np.bool_], fold: NDArray[np.int64]) -> Floats:
        """Rate the statements of the answers ``seen``, each by a probe fitted to the other folds of these."""
        margins = np.full(len(self.states), NOT_RATED)
        for left_out in np.unique(fold[seen]):
            rated = (seen & (fold == left_out))[self.answer]
            probe = self.fit_probe(seen & (fold != left_out))
            margins[rated] = SmallReader(model=self.model, probe=probe).margins(self.states[rated])
        return margins

    def features(self, margins: Floats, seen: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the features of all candidates, in the order of `LabelledCandidates`: ``[rows, ...]``.

        Those of answers that are not ``seen`` are 0.
        """
        found: list[tuple[float, ...]] = []
        starts = np.searchsorted(self.answer, np.arange(len(self.candidates) + 1))
        for number, candidates in enumerate(self.candidates):
            if not seen[number]:
                found += [(0.0,) * len(STATE_FEATURES)] * len(candidates)
                continue
            own = range(int(starts[number]), int(starts[number + 1]))
            rated = [RatedStatement(self.places[row][1], float(margins[row])) for row in own]
            ends = np.array([self.places[row][0] for row in own])
            for step, value in candidates:
                so_far = int(np.searchsorted(ends, step, side="right"))
                found.append(state_features(rated[:so_far], value))
        return np.array(found, np.float32).reshape(-1, len(STATE_FEATURES))


def _rounded(numbers: Floats) -> tuple[float, ...]:
    return tuple(float(f"{number:.{_DIGITS}g}") for number in numbers)
