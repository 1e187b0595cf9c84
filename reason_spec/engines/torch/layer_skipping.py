"""Self-speculation: the target drafts with some of its sublayers left out (SWIFT, arXiv 2410.06916).

Which sublayers to skip is searched while answers are written. A candidate is compared with the best set so
far on the last tokens of an answer, in one pass each: the share of tokens that it predicts like the target
(matchness), against the time that it saves.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock
from torch import Tensor

from reason_spec.engines.torch.attention import Part, Sublayer
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain, PassBuilder
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.sublayers import layers_of, prepare_sublayers
from reason_spec.engines.torch.token_drafts import DraftLane
from reason_spec.errors import DataError
from reason_spec.jsonl import atomic_output
from reason_spec.speculation.draft_calibration import entry_of

logger = logging.getLogger(__name__)

Skipped = frozenset[Sublayer]

START_SHARE: Final = 0.45
"""Share of the sublayers that is skipped at first; section 5.1 of the paper."""
WINDOW: Final = 32
"""Tokens of an answer on which candidates are compared, as in the paper."""
MAX_TRIALS: Final = 200
"""Trials of a task until the search ends."""
MAX_TASKS: Final = 64
"""Tasks whose sets are kept in memory, and in the file; the least recent one goes first."""
SEARCH_SHARE: Final = 0.05
"""The share of the time that the search may take."""
_LONGEST_PASS = 1.0
"""Seconds between two calls that count at most: the engine may have been idle."""
_MAX_DRAFTS = 8
_LOCK_SECONDS = 5.0
"""Seconds that a save waits for another process; answers wait with it."""


@dataclass(slots=True)
class SkipSearch:
    """The best set of skipped sublayers of one task, and how far the search is."""

    best: Skipped
    num_trials: int = 0


class LayerSkipping:
    """Drafts with the target's own layers.

    Args:
        kept: file in which the sets of all tasks are kept; None for none.
        clock: monotonic seconds.

    Raises:
        UnsupportedModelError: the layers are not made like Llama's.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        kept: Path | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        layers = layers_of(name, model.module)
        if model.fused is None:
            prepare_sublayers(name, model.module)
        self._model = model
        self._kept = kept
        self._rng = random.Random(seed)
        self._clock = clock
        self._called_at, self._seconds_left = clock(), 0.0
        head = model.module.get_input_embeddings().weight.numel()
        parts: tuple[Part, ...] = ("attention", "mlp")
        sizes = {
            Sublayer(index, part): sum(weight.numel() for weight in module.parameters())
            for index, layer in enumerate(layers)
            for part, module in zip(parts, (layer.self_attn, layer.mlp), strict=True)
        }
        total = head + sum(sizes.values())
        self._shares = {sublayer: size / total for sublayer, size in sizes.items()}
        # The first and the last layer change the states the most.
        inner = [one for one in sizes if 0 < one.layer < len(layers) - 1]
        self._candidates = inner or list(sizes)
        self._tasks: dict[str, SkipSearch] = self._load()

    def run(self, lanes: SequenceOf[DraftLane]) -> Tensor:
        chains, slots = [], []
        for lane in lanes:
            chain, own = lane.chain(0, len(lane.sequence.tokens) + len(lane.tokens) - 1)
            chains.append(chain)
            slots += own
        # One pass has one set, whatever the tasks of its other lanes: drafts are verified in any case.
        task = self._task(lanes[0].sequence)
        return self._model.run(PassBuilder().build(chains, slots), task.best)

    def improve(self, sequences: SequenceOf[GenerationSequence], trie: PrefixTrie) -> None:
        now = self._clock()
        self._seconds_left += SEARCH_SHARE * min(now - self._called_at, _LONGEST_PASS)
        self._called_at = now
        for sequence in sequences if self._seconds_left > 0 else ():
            task = self._task(sequence)
            if task.num_trials < MAX_TRIALS and len(sequence.output.tokens) > WINDOW:
                self._try_candidate(task, sequence, trie)
                self._seconds_left -= self._clock() - now
                return

    def speed(self, skipped: Skipped, matchness: float) -> float:
        """Return the expected tokens per time of a target pass, with the best number of drafts.

        It is (1 - m^(k+1)) / (1 - m) / (1 + k c) for matchness m and k drafts, where c is the share of the
        weights that a draft pass reads.
        """
        cost = 1.0 - sum(self._shares[one] for one in skipped)
        expected, best = 1.0, 1.0
        for count in range(1, _MAX_DRAFTS + 1):
            expected += matchness**count
            best = max(best, expected / (1 + count * cost))
        return best

    def _try_candidate(self, task: SkipSearch, sequence: GenerationSequence, trie: PrefixTrie) -> None:
        candidate = self._neighbour(task.best)
        own, found = (self._matchness(sequence, one, trie) for one in (task.best, candidate))
        if own is None or found is None:
            return
        task.num_trials += 1
        # No set may be fast enough yet to be worth it: then the one that predicts more is nearer to that.
        if (self.speed(candidate, found), found) > (self.speed(task.best, own), own):
            task.best = candidate
            self._save(sequence.request.cache_key[1])

    def _neighbour(self, skipped: Skipped) -> Skipped:
        """Return the set with one or two sublayers more, fewer, or exchanged."""
        inside = [one for one in self._candidates if one in skipped]
        outside = [one for one in self._candidates if one not in skipped]
        change = self._rng.choice(("add", "drop", "exchange"))
        added = (
            self._rng.sample(outside, min(len(outside), self._rng.randint(1, 2))) if change != "drop" else []
        )
        dropped = (
            self._rng.sample(inside, min(len(inside), self._rng.randint(1, 2))) if change != "add" else []
        )
        return (skipped - set(dropped)) | set(added)

    def _matchness(self, sequence: GenerationSequence, skipped: Skipped, trie: PrefixTrie) -> float | None:
        """Return the share of the last tokens that the skipping model predicts; None without free slots."""
        end = len(sequence.path)
        start = end - WINDOW
        slots = trie.take(WINDOW)
        if start < 1 or slots is None:
            trie.give_back(slots or ())
            return None
        tokens = sequence.tokens.values
        chain = Chain(tokens[start:end].tolist(), sequence.path.slots[:start], 0, WINDOW, 0, 0)
        logits = self._model.run(PassBuilder().build([chain], slots), skipped)
        trie.give_back(slots)
        following = tokens[start + 1 : end + 1].tolist()
        hits = [one == other for one, other in zip(logits.argmax(-1).tolist(), following, strict=True)]
        return float(sum(hits)) / WINDOW

    def _task(self, sequence: GenerationSequence) -> SkipSearch:
        scope = sequence.request.cache_key[1]
        return entry_of(self._tasks, scope, lambda: SkipSearch(self._start()), MAX_TASKS)

    def _start(self) -> Skipped:
        """Return sublayers that are spread evenly over the layers."""
        count = round(START_SHARE * len(self._candidates))
        places = {round((place + 0.5) * len(self._candidates) / count) for place in range(count)}
        return frozenset(self._candidates[min(place, len(self._candidates) - 1)] for place in places)

    def _load(self) -> dict[str, SkipSearch]:
        if self._kept is None or not self._kept.is_file():
            return {}
        try:
            content = json.loads(self._kept.read_text(encoding="utf-8"))
            return {
                scope: SkipSearch(frozenset(Sublayer(*one) for one in kept), num_trials=MAX_TRIALS // 2)
                for scope, kept in content.items()
                if all(Sublayer(*one) in self._candidates for one in kept)
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning(
                "%s cannot be read (%s); the search for layers to skip starts again", self._kept, error
            )
            return {}

    def _save(self, scope: str) -> None:
        """Keep the best set of a task, beside those that other processes keep in the file."""
        if self._kept is None:
            return
        try:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._kept.with_name(f"{self._kept.name}.lock"), timeout=_LOCK_SECONDS):
                kept = self._load()
                kept.pop(scope, None)
                kept[scope] = self._tasks[scope]
                content = {scope: sorted(task.best) for scope, task in list(kept.items())[-MAX_TASKS:]}
                with atomic_output(self._kept) as output:
                    output.write(json.dumps(content).encode())
        except (OSError, DataError) as error:
            logger.warning("the layers to skip are not kept: %s", error)
            self._kept = None
