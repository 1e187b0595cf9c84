"""Caches under the replay of `suffix_replay`, each behind the same five methods, and the replay itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from suffix_texts import Segment, TextRun

from reason_spec.settings import SuffixSettings
from reason_spec.suffix import draft_kernels as kernels
from reason_spec.suffix.base import Session
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.published import PublishedCache
from reason_spec.suffix.session import CacheSession

Tokens = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float64]
UNBOUNDED: Final = 1e4


class Draft(NamedTuple):
    """Proposed tokens; ``parents`` are places in ``tokens``, -1 after the text."""

    tokens: Sequence[int]
    parents: Sequence[int]


class Writer(Protocol):
    """A cache under the replay. A turn is begun with the whole prompt."""

    def begin(self, prompt: Sequence[Segment], text: Tokens) -> None: ...

    def propose(self, text: Tokens, budget: int) -> Draft: ...

    def extend(self, tokens: list[int]) -> None: ...

    def end_run(self) -> None: ...

    def bytes_per_token(self) -> float: ...


class Ours:
    """This project's caches, of either rule: one session for each run.

    Args:
        weights: of a drafted token's features, instead of the shipped ones; shape (features,).
    """

    def __init__(self, tree: bool, settings: SuffixSettings, weights: Weights | None = None) -> None:
        make = SuffixCache if settings.rule == "ours" else PublishedCache
        self._cache: SuffixCache | PublishedCache = make(settings)
        self.session: Session = self._cache.open_session()
        self._tree = tree
        if weights is not None:
            assert isinstance(self.session, CacheSession)
            # The cache has no public way to other weights than its own.
            self.session._tenant.model[:] = weights

    def begin(self, prompt: Sequence[Segment], text: Tokens) -> None:
        self.session.begin(prompt)

    def propose(self, text: Tokens, budget: int) -> Draft:
        proposal = self.session.propose_tokens(budget, tree=self._tree)
        return Draft(proposal.tokens, proposal.parents)

    def extend(self, tokens: list[int]) -> None:
        self.session.extend(tokens)

    def end_run(self) -> None:
        self.session.close()
        self.session = self._cache.open_session()

    def bytes_per_token(self) -> float:
        size = self._cache.size("default")
        return size.num_bytes / max(1, size.num_tokens)


class ArcticSetting(NamedTuple):
    """Arguments of arctic-inference's cache and of its ``speculate``."""

    depth: int
    factor: float
    offset: float
    min_prob: float
    tree: bool

    def __str__(self) -> str:
        factor = "unbounded" if self.factor == UNBOUNDED else f"{self.factor:g}"
        shape = "tree" if self.tree else "chain"
        return (
            f"{shape}, depth {self.depth}, factor {factor}, offset {self.offset:g}, least {self.min_prob:g}"
        )


class Arctic:
    """arctic-inference's cache, used as vLLM does: each turn is a request, its prompt inserted anew."""

    def __init__(self, setting: ArcticSetting) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(setting.depth, 10_000)
        self._setting = setting
        self._request = 0
        self._num_tokens = 0

    def begin(self, prompt: Sequence[Segment], text: Tokens) -> None:
        self.end_run()
        self._request += 1
        self._cache.start_request(self._request, text)

    def propose(self, text: Tokens, budget: int) -> Draft:
        setting = self._setting
        draft = self._cache.speculate(
            self._request,
            text[-setting.depth :],
            max_spec_tokens=budget,
            max_spec_factor=setting.factor,
            max_spec_offset=setting.offset,
            min_token_prob=setting.min_prob,
            use_tree_spec=setting.tree,
        )
        return Draft(draft.token_ids, draft.parents)

    def extend(self, tokens: list[int]) -> None:
        self._cache.add_active_response(self._request, tokens)
        self._num_tokens += len(tokens)

    def end_run(self) -> None:
        if self._request in self._cache.active_requests:
            self._cache.stop_request(self._request)

    def bytes_per_token(self) -> float:
        # It has no public way to its tree of past answers.
        return float(self._cache._global_tree.estimate_memory()) / self._num_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One cache with one budget on the runs of one case; what a row cannot know is None."""

    case: str
    name: str
    setting: str
    budget: int
    num_runs: int
    num_tokens: int
    tokens_per_pass: float
    drafted_in_vain: float | None = None
    propose_us_p50: float | None = None
    propose_us_p99: float | None = None
    update_us_per_token: float | None = None
    bytes_per_token: float | None = None


def case_of(run: TextRun, seen: set[str]) -> str:
    """Return whether a run is the first of its task, and count its task as seen."""
    known = run.task in seen
    seen.add(run.task)
    return "known_task" if known else "new_task"


@dataclass(slots=True)
class Replay:
    """A cache that replays runs, and what was counted, by case."""

    name: str
    setting: str
    budget: int
    cache: Writer
    num_runs: Counter[str] = field(default_factory=Counter)
    num_passes: Counter[str] = field(default_factory=Counter)
    num_written: Counter[str] = field(default_factory=Counter)
    num_in_vain: Counter[str] = field(default_factory=Counter)
    num_learned: int = 0
    update_seconds: float = 0.0
    propose_seconds: list[float] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    @property
    def totals(self) -> tuple[int, int]:
        """Passes and tokens drafted in vain, of all cases."""
        return self.num_passes.total(), self.num_in_vain.total()

    def run(self, run: TextRun) -> None:
        """Replay one run."""
        case, segments = case_of(run, self._seen), run.segments
        self.num_runs[case] += 1
        self.num_learned += sum(len(segment.tokens) for segment in segments)
        text = np.empty(sum(len(segment.tokens) for segment in segments), np.int32)
        length = 0
        for number, segment in enumerate(segments):
            if segment.source == "output":
                start = time.perf_counter()
                self.cache.begin(segments[:number], text[:length])
                self.update_seconds += time.perf_counter() - start
                self._write(segment.tokens, text, length, case)
            text[length : length + len(segment.tokens)] = segment.tokens
            length += len(segment.tokens)
        start = time.perf_counter()
        self.cache.end_run()
        self.update_seconds += time.perf_counter() - start

    def _write(self, answer: list[int], text: Tokens, length: int, case: str) -> None:
        written = 0
        while written < len(answer):
            start = time.perf_counter()
            draft = self.cache.propose(text[: length + written], self.budget)
            proposed = time.perf_counter()
            taken = count_taken(draft, answer[written:])
            new = answer[written : written + taken + 1]
            text[length + written : length + written + len(new)] = new
            learning = time.perf_counter()
            self.cache.extend(new)
            self.update_seconds += time.perf_counter() - learning
            self.propose_seconds.append(proposed - start)
            self.num_passes[case] += 1
            self.num_in_vain[case] += len(draft.tokens) - taken
            written += len(new)
        self.num_written[case] += len(answer)

    def rows(self) -> list[Row]:
        """Return a row for each case; times and bytes are those of all cases."""
        median, worst = np.quantile(self.propose_seconds, [0.5, 0.99]) * 1e6
        return [
            Row(
                case=case,
                name=self.name,
                setting=self.setting,
                budget=self.budget,
                num_runs=self.num_runs[case],
                num_tokens=self.num_written[case],
                tokens_per_pass=self.num_written[case] / passes,
                drafted_in_vain=self.num_in_vain[case] / self.num_written[case],
                propose_us_p50=float(median),
                propose_us_p99=float(worst),
                update_us_per_token=self.update_seconds * 1e6 / self.num_learned,
                bytes_per_token=self.cache.bytes_per_token(),
            )
            for case, passes in sorted(self.num_passes.items(), reverse=True)
        ]


def count_taken(draft: Draft, answer: Sequence[int]) -> int:
    """Return how many tokens of the answer lie on a path of the draft."""
    at, taken = -1, 0
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        # Parents stand before children, and siblings differ: one walk finds the path.
        if parent == at and taken < len(answer) and token == answer[taken]:
            at, taken = node, taken + 1
    return taken


class _Watched(Ours):
    """Ours, which keeps the features of each proposed next token and whether it came."""

    def __init__(self) -> None:
        super().__init__(True, SuffixSettings())
        self.features: list[Weights] = []
        self.came: list[npt.NDArray[np.bool_]] = []

    def extend(self, tokens: list[int]) -> None:
        assert isinstance(self.session, CacheSession)
        nodes, values = self.session._draft.nodes, self.session._draft.values
        count, at = int(nodes[kernels.STATE, 0]), 0
        for token in tokens:
            children = 1 + np.flatnonzero(nodes[kernels.PARENT, 1:count] == at)
            if not len(children):
                break
            came = nodes[kernels.TOKEN, children] == token
            self.features.append(values[kernels.FEATURES : kernels.VALUE_ROWS, children].T.copy())
            self.came.append(came)
            if not came.any() or nodes[kernels.STATE, children[came][0]] == kernels.OPEN:
                break
            at = int(children[came][0])
        super().extend(tokens)


def fitted_weights(runs: Sequence[TextRun], budget: int = 16, rounds: int = 12) -> Weights:
    """Return weights of our cache fitted to what became of its proposals on these runs; shape (features,).

    Logistic regression by Newton's method, with a ridge of one observation.
    """
    watched = _Watched()
    replay = Replay("fit", "", budget, watched)
    for run in runs:
        replay.run(run)
    features, came = np.concatenate(watched.features), np.concatenate(watched.came).astype(np.float64)
    weights = np.zeros(kernels.NUM_FEATURES)
    for _ in range(rounds):
        chances = 1.0 / (1.0 + np.exp(-np.clip(features @ weights, -30.0, 30.0)))
        spread = chances * (1.0 - chances)
        slope = features.T @ (came - chances) - weights
        curvature = (features * spread[:, None]).T @ features + np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, slope)
    return weights
