"""Record what a draft model would draft after every token of texts that the target writes.

    python benchmarks/draft_places.py FILE [--drafter MODEL] [--target MODEL] [--problems 12] [--max-tokens N]

``--drafter`` is a head, or a draft model: here it drafts on the target's core, between its passes. From each
place of a greedy text it drafts the likeliest chain of `CHAIN` tokens and a beam of EAGLE-2's size. The file
holds the likeliest tokens after every path of both, with their probabilities and the entropy, from which
`draft_replay.py` works out what rules and shapes gain.

The file also holds T(n), the time of a pass of the target over n tokens, and that of a pass of the draft over
so many paths: medians of processor time, which other processes on the core change little.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from draft_counts import Bench
from torch import Tensor

from reason_spec.engines.eagle_files import is_head
from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.torch.drafters import load_drafter
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain, PassBuilder, PassLayout
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.predictions import Predictions
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.token_drafts import DraftLane, DraftModel
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.evaluation.loops import loop_start
from reason_spec.settings import load_settings
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.speculation.draft_tree import Path as DraftPath
from reason_spec.speculation.recycling import WIDTH
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.tasks import REAL_SAMPLE_PATH, load_problems

CHAIN: Final = 8
"""Tokens of the likeliest chain."""
BEAM: Final = 16
"""Draft tokens that the beam is asked for: more than its width, so it is as wide and deep as it gets."""
_DRAFTED: Final[tuple[tuple[DraftTreeName, int], ...]] = (("chain", CHAIN), ("eagle2", BEAM))
_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CONTEXT, _REPEATS = 200, 15
_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Found:
    """The draft model's likeliest tokens after a path, and the entropy of its prediction in nats.

    Paths of the beam alone have none: no rule reads it there.
    """

    path: DraftPath
    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    entropy: float | None

    @property
    def next(self) -> NextTokens:
        return NextTokens(self.tokens, self.chances)


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and what was found at each of its places from the second token on."""

    tokens: tuple[int, ...]
    places: tuple[tuple[Found, ...], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What a draft model drafts on some texts.

    Attributes:
        pass_ms: T(n) of the target by tokens.
        draft_ms: the time of a pass of the draft model by paths.
    """

    drafter: str
    pass_ms: dict[int, float]
    draft_ms: dict[int, float]
    texts: list[Text] = field(default_factory=list)

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Record:
        content = json.loads(file.read_text())
        texts = [
            Text(
                tuple(text["tokens"]),
                tuple(
                    tuple(
                        Found(tuple(one["path"]), tuple(one["tokens"]), tuple(one["chances"]), one["entropy"])
                        for one in place
                    )
                    for place in text["places"]
                ),
            )
            for text in content["texts"]
        ]
        pass_ms, draft_ms = (
            {int(size): ms for size, ms in content[name].items()} for name in ("pass_ms", "draft_ms")
        )
        return cls(content["drafter"], pass_ms, draft_ms, texts)


class OwnModel:
    """A draft model that drafts in the target's slots, with keys and values of its own for them."""

    layers = (0,)
    """It needs no hidden states: the tap tells which slots the target has written."""

    def __init__(self, draft: Model, target: Model, num_slots: int) -> None:
        self._draft = draft
        self._is_computed = np.zeros(num_slots, dtype=np.bool_)
        target.tap = self

    def take(self, layout: PassLayout, states: Tensor) -> None:
        self._is_computed[layout.slots] = False

    def improve(self, sequences: Sequence[GenerationSequence], trie: PrefixTrie) -> None:
        """Do nothing: the draft stays as it was trained."""

    def run(self, lanes: Sequence[DraftLane]) -> Tensor:
        chains, slots = [], []
        for lane in lanes:
            path = lane.sequence.path.slots
            start = self._first_missing(lane)
            chain, own = lane.chain(0, start)
            chains.append(chain)
            slots += own
            self._is_computed[own[: max(0, len(path) - start)]] = True
        return self._draft.run(PassBuilder().build(chains, slots))

    def _first_missing(self, lane: DraftLane) -> int:
        if lane.tokens:
            return len(lane.sequence.tokens) + len(lane.tokens) - 1
        computed = self._is_computed[lane.sequence.path.slots]
        return len(computed) if computed.all() else int(np.argmin(computed))


class Recorder:
    """Passes on what a draft model drafts, and keeps it."""

    def __init__(self, inner: DraftModel) -> None:
        self._inner = inner
        self.seen: dict[DraftPath, Found] = {}
        self._seconds: dict[int, list[float]] = {}

    def improve(self, sequences: Sequence[GenerationSequence], trie: PrefixTrie) -> None:
        self._inner.improve(sequences, trie)

    def run(self, lanes: Sequence[DraftLane]) -> Tensor:
        started = time.process_time()
        logits = self._inner.run(lanes)
        rows = range(len(lanes))
        predictions = Predictions.of_pass(logits, rows)
        likeliest = predictions.top_tokens(rows, WIDTH)
        # The first pass of a draft also reads what the target has written since the last.
        if lanes[0].tokens:
            self._seconds.setdefault(len(lanes), []).append(time.process_time() - started)
        for row, lane in enumerate(lanes):
            path = tuple(lane.tokens)
            tokens, chances = likeliest[row]
            rounded = tuple(round(chance, _DIGITS) for chance in chances)
            entropy = round(predictions.entropy(row), _DIGITS) if len(lanes) == 1 else None
            self.seen.setdefault(path, Found(path, tokens, rounded, entropy))
        return logits

    @property
    def milliseconds(self) -> dict[int, float]:
        return {
            lanes: round(1e3 * statistics.median(times), 2) for lanes, times in sorted(self._seconds.items())
        }


class NoVerification(PassTimes):
    """Pass times under which the target verifies one draft token alone."""

    @property
    def least_chance(self) -> float:
        return 1.0


def pass_milliseconds(model: Model) -> dict[int, float]:
    """Return T(n) on an idle model, whose first slots it overwrites."""
    found: dict[int, float] = {}
    with torch.inference_mode():
        for size in _SIZES:
            chain = Chain([0] * size, np.arange(_CONTEXT, dtype=np.int64), 0, size, 0, 0)
            layout = PassBuilder().build([chain], list(range(_CONTEXT, _CONTEXT + size)))
            seconds = []
            for _ in range(_REPEATS):
                started = time.process_time()
                model.run(layout).argmax(-1).tolist()
                seconds.append(time.process_time() - started)
            found[size] = round(1e3 * statistics.median(seconds), 2)
    return found


def write(scheduler: Scheduler, request: EngineRequest) -> tuple[int, ...]:
    """Return the text of a request up to where it loops."""
    scheduler.submit(0, request)
    results: list[Any] = []
    while scheduler.has_work:
        results += [result for _, result in scheduler.step().results]
    (result,) = results
    assert isinstance(result, GenerationResult), result
    return result.tokens[: loop_start(result.tokens)]


def record_text(scheduler: Scheduler, recorder: Recorder, request: EngineRequest) -> Text:
    """Write a text, and draft at each of its places for a request that ends with the next pass."""
    tokens = write(scheduler, request)
    places: list[tuple[Found, ...]] = []
    for place in range(1, len(tokens)):
        recorder.seen = {}
        for shape, budget in _DRAFTED:
            asked = replace(
                request,
                prefix=request.prefix.extend(tokens[:place]),
                max_tokens=1 + budget,
                model_drafts=True,
                draft_tree=shape,
                refusal_threshold=1.0,
                num_draft_tokens=budget,
            )
            scheduler.submit(0, asked)
            scheduler.step()
            scheduler.cancel(0)
            scheduler.step()
        places.append(tuple(recorder.seen.values()))
    return Text(tokens, tuple(places))


def record(bench: Bench, drafter: str, max_tokens: int) -> Record:
    """Let the target write its texts, and the draft model draft at their places.

    An interrupt ends it with the texts so far.
    """
    model, num_slots = bench.model, bench.target.cache_tokens
    pass_ms = pass_milliseconds(model)
    folder = resolve_model("draft", drafter)
    inner: DraftModel | None
    if is_head(Path(folder)):
        inner = load_drafter(bench.target, model, lambda _: None)
    else:
        draft = load_model(bench.target.model_copy(update={"model": folder}))
        inner = OwnModel(draft, model, num_slots)
    assert inner is not None, "the settings name the head"
    recorder = Recorder(inner)
    # Without kept predictions each request begins with a pass, and drafts before it.
    scheduler = Scheduler(
        model,
        bench.tokenizer,
        num_slots=num_slots,
        kept_prediction_bytes=0,
        pass_times=NoVerification(),
        draft_model=recorder,
    )
    texts: list[Text] = []
    with contextlib.suppress(KeyboardInterrupt):
        for problem in bench.problems:
            request = replace(bench.request(problem, 0, 0.0), max_tokens=max_tokens)
            texts.append(record_text(scheduler, recorder, request))
            sys.stderr.write(f"\r{len(texts)} of {len(bench.problems)} texts")
    sys.stderr.write("\n")
    return Record(drafter, pass_ms, recorder.milliseconds, texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="models:smollm2-gsm8k", metavar="MODEL")
    parser.add_argument("--drafter", default="models:smollm2-gsm8k-head", metavar="MODEL")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = resolve_model("draft", options.drafter)
    flags: dict[str, Any] = {"target.model": options.target, "target.dtype": "float32"}
    if is_head(Path(folder)):
        flags["target.drafter"] = folder
    problems = load_problems(REAL_SAMPLE_PATH, "gsm8k", options.problems).problems
    bench = Bench(load_settings(flags=flags), problems, 1)
    record(bench, options.drafter, options.max_tokens).save(options.file)


if __name__ == "__main__":
    main()
