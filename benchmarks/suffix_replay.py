"""Replay agent traces as a greedy target would write them, and count what a suffix cache saves.

    python benchmarks/suffix_replay.py FILE... [--budgets 4 8 16 32] [--runs=FIRST:LAST] [--no-search]
                                       [--json [FILE]]
    python benchmarks/suffix_replay.py --store-size TOKENS [--json [FILE]]

The second form saves and loads that many tokens, and needs no file.

The first needs the extra ``bench``. A file is jsonl, each line a run with its ``messages``. They are
tokenised with the tekken tokenizer that lies inside mistral-common. Each assistant turn is written as a
greedy target would: the cache proposes, the matching path and one token more are taken, and so on; a pass is
one such round.

Rows, for each budget of drafted tokens in a pass:

- ``reason-spec``: this project's cache, as a chain and as a tree, for each of ``MIN_CHANCES``;
- ``published``: SuffixDecoding as published, as a chain and as a tree, for each of ``FACTORS``;
- ``arctic:default``: arctic-inference's SuffixDecodingCache with the settings that vLLM gives it;
- ``arctic:chain`` and ``arctic:tree``: of the settings in ``GRID`` those with the most tokens a pass on these
  very traces, by which they have an advantage;
- ``ceiling``: in every pass the best of all past continuations after two or more matched tokens.

All caches take turns, run by run, so that noise of the machine meets them alike. ``tokens_per_pass`` counts
the tokens that the target writes itself. ``drafted_in_vain``: drafted tokens that were not taken, for each
token of the answers. ``update_us_per_token``: all time that is spent learning, over all new tokens of prompts
and answers. ``bytes_per_token``: ours, all arrays of the index over the tokens in it; arctic's, its own
``estimate_memory`` of the tree of past answers over the tokens of these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from reason_spec.errors import DataError
from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import SOURCES, Session, Source
from reason_spec.suffix.cache import SuffixCache, warm_up
from reason_spec.suffix.documents import make_document
from reason_spec.suffix.published import PublishedCache
from reason_spec.suffix.store import SuffixStore
from reason_spec.suffix.tenant_file import StoreKey

VLLM_DEPTH: Final = 24
"""vLLM's suffix_decoding_max_tree_depth; with it go a factor of 1 and a least token probability of 0.1."""
DEPTH: Final = 64
UNBOUNDED: Final = 1e4
MIN_CHANCES: Final = (None, 0.1, 0.02)
"""Of ours; None is the default. Lower ones draft more and waste more."""
FACTORS: Final = (1.0, 2.0, 4.0)
"""Of the published rule, its alpha: draft tokens for each matched one."""


class Draft(NamedTuple):
    """Proposed tokens; ``parents`` are places in ``tokens``, -1 after the text."""

    tokens: Sequence[int]
    parents: Sequence[int]


class Segment(NamedTuple):
    """A message of a run as tokens."""

    source: Source
    tokens: list[int]


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


DEFAULT: Final = ArcticSetting(VLLM_DEPTH, 1.0, 0.0, 0.1, False)
GRID: Final = tuple(
    (factor, offset, min_prob)
    for factor, offset in ((2.0, 0.0), (4.0, 0.0), (4.0, 4.0), (UNBOUNDED, 0.0))
    for min_prob in (0.0, 0.1)
)


@dataclass(frozen=True, slots=True)
class Row:
    """One cache with one budget; what a row cannot know is None."""

    name: str
    setting: str
    budget: int
    tokens_per_pass: float
    drafted_in_vain: float | None = None
    propose_us_p50: float | None = None
    propose_us_p99: float | None = None
    update_us_per_token: float | None = None
    bytes_per_token: float | None = None


# --- traces ---------------------------------------------------------------------------------------------


def read_runs(files: Sequence[Path]) -> list[list[Segment]]:
    """Return the messages of all runs as tokens.

    Raises:
        DataError: a line is no object with messages.
    """
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    with resources.as_file(resources.files("mistral_common") / "data" / "tekken_240911.json") as path:
        tokenizer = Tekkenizer.from_file(path)
    runs = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            fields = json.loads(line) if line.strip() else None
            if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
                raise DataError(f"{file}, line {number}: no object with the field messages")
            runs.append([_segment_of(message, tokenizer) for message in fields["messages"]])
    return runs


def _segment_of(message: dict[str, Any], tokenizer: Any) -> Segment:
    tokens = tokenizer.encode(message.get("content") or "", bos=False, eos=False)
    special = tokenizer.get_special_token
    match message["role"]:
        case "system":
            return Segment("prompt", [tokenizer.bos_id, *tokens])
        case "user":
            return Segment("prompt", [special("[INST]"), *tokens, special("[/INST]")])
        case "tool":
            return Segment("tool", [special("[TOOL_RESULTS]"), *tokens, special("[/TOOL_RESULTS]")])
        case "assistant":
            if calls := message.get("tool_calls"):
                tokens = [*tokens, special("[TOOL_CALLS]")]
                tokens += tokenizer.encode(
                    json.dumps([_call_of(call) for call in calls]), bos=False, eos=False
                )
            return Segment("output", [*tokens, tokenizer.eos_id])
        case role:
            raise DataError(f"a message has the role {role!r}; known are system, user, tool, assistant")


def _call_of(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function["arguments"]
    return {
        "name": function["name"],
        "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments,
    }


# --- caches ---------------------------------------------------------------------------------------------


class Replayed(Protocol):
    """A cache under the replay. A turn is begun with the whole prompt."""

    def begin(self, prompt: Sequence[Segment], text: npt.NDArray[np.int32]) -> None: ...

    def propose(self, text: npt.NDArray[np.int32], budget: int) -> Draft: ...

    def extend(self, tokens: list[int]) -> None: ...

    def end_run(self) -> None: ...

    def bytes_per_token(self) -> float: ...


class Ours:
    """This project's caches, of either rule: one session for each run."""

    def __init__(self, tree: bool, settings: SuffixSettings) -> None:
        make = SuffixCache if settings.rule == "ours" else PublishedCache
        self._cache: SuffixCache | PublishedCache = make(settings)
        self._session: Session = self._cache.open_session()
        self._tree = tree

    def begin(self, prompt: Sequence[Segment], text: npt.NDArray[np.int32]) -> None:
        self._session.begin(prompt)

    def propose(self, text: npt.NDArray[np.int32], budget: int) -> Draft:
        proposal = self._session.propose_tokens(budget, tree=self._tree)
        return Draft(proposal.tokens, proposal.parents)

    def extend(self, tokens: list[int]) -> None:
        self._session.extend(tokens)

    def end_run(self) -> None:
        self._session.close()
        self._session = self._cache.open_session()

    def bytes_per_token(self) -> float:
        size = self._cache.size("default")
        return size.num_bytes / max(1, size.num_tokens)


class Arctic:
    """arctic-inference's cache, used as vLLM does: each turn is a request, its prompt inserted anew."""

    def __init__(self, setting: ArcticSetting) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(setting.depth, 10_000)
        self._setting = setting
        self._request = 0
        self._num_tokens = 0

    def begin(self, prompt: Sequence[Segment], text: npt.NDArray[np.int32]) -> None:
        self.end_run()
        self._request += 1
        self._cache.start_request(self._request, text)

    def propose(self, text: npt.NDArray[np.int32], budget: int) -> Draft:
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


# --- replay ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Replay:
    """A cache that replays runs, and what was counted."""

    name: str
    setting: str
    budget: int
    cache: Replayed
    num_passes: int = 0
    num_written: int = 0
    num_in_vain: int = 0
    num_learnt: int = 0
    update_seconds: float = 0.0
    propose_seconds: list[float] = field(default_factory=list)

    def run(self, segments: Sequence[Segment]) -> None:
        """Replay one run."""
        self.num_learnt += sum(len(segment.tokens) for segment in segments)
        text = np.empty(sum(len(segment.tokens) for segment in segments), np.int32)
        length = 0
        for number, segment in enumerate(segments):
            if segment.source == "output":
                start = time.perf_counter()
                self.cache.begin(segments[:number], text[:length])
                self.update_seconds += time.perf_counter() - start
                self._write(segment.tokens, text, length)
            text[length : length + len(segment.tokens)] = segment.tokens
            length += len(segment.tokens)
        start = time.perf_counter()
        self.cache.end_run()
        self.update_seconds += time.perf_counter() - start

    def _write(self, answer: list[int], text: npt.NDArray[np.int32], length: int) -> None:
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
            self.num_passes += 1
            self.num_in_vain += len(draft.tokens) - taken
            written += len(new)
        self.num_written += len(answer)

    def row(self) -> Row:
        median, worst = np.quantile(self.propose_seconds, [0.5, 0.99]) * 1e6
        return Row(
            name=self.name,
            setting=self.setting,
            budget=self.budget,
            tokens_per_pass=self.num_written / self.num_passes,
            drafted_in_vain=self.num_in_vain / self.num_written,
            propose_us_p50=float(median),
            propose_us_p99=float(worst),
            update_us_per_token=self.update_seconds * 1e6 / self.num_learnt,
            bytes_per_token=self.cache.bytes_per_token(),
        )


def count_taken(draft: Draft, answer: Sequence[int]) -> int:
    """Return how many tokens of the answer lie on a path of the draft."""
    at, taken = -1, 0
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        # Parents stand before children, and siblings differ: one walk finds the path.
        if parent == at and taken < len(answer) and token == answer[taken]:
            at, taken = node, taken + 1
    return taken


def replay_all(replays: Sequence[Replay], runs: Sequence[Sequence[Segment]], title: str) -> None:
    """Replay all runs with all caches, which take turns."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=len(runs) * len(replays))
        for number, segments in enumerate(runs):
            for place in range(len(replays)):
                replays[(number + place) % len(replays)].run(segments)
                progress.advance(task)


def best_of(budget: int, tree: bool, runs: Sequence[Sequence[Segment]]) -> ArcticSetting:
    """Return the setting of the grid with the most tokens a pass; among equals, the fewest in vain."""
    settings = [ArcticSetting(DEPTH, *setting, tree) for setting in GRID]
    replays = [Replay("arctic", str(setting), budget, Arctic(setting)) for setting in settings]
    replay_all(replays, runs, f"arctic's best {'tree' if tree else 'chain'} of {budget}")
    ranked = zip(replays, settings, strict=True)
    return max(ranked, key=lambda pair: (-pair[0].num_passes, -pair[0].num_in_vain))[1]


def replays_of(budget: int, best: Sequence[tuple[str, ArcticSetting]]) -> Iterator[Replay]:
    for tree, min_chance in itertools.product((False, True), MIN_CHANCES):
        setting = f"{'tree' if tree else 'chain'}, min_chance {min_chance or 'default'}"
        yield Replay("reason-spec", setting, budget, Ours(tree, SuffixSettings(min_chance=min_chance)))
    for tree, factor in itertools.product((False, True), FACTORS):
        setting = f"{'tree' if tree else 'chain'}, alpha {factor:g}"
        settings = SuffixSettings(rule="published", max_spec_factor=factor)
        yield Replay("published", setting, budget, Ours(tree, settings))
    for name, arctic in (("arctic:default", DEFAULT), *best):
        yield Replay(name, str(arctic), budget, Arctic(arctic))


# --- ceiling --------------------------------------------------------------------------------------------


def longest_continuations(runs: Sequence[Sequence[Segment]], most: int) -> list[npt.NDArray[np.int64]]:
    """Return for each place of each run how many tokens from there on a past continuation foretold.

    It followed the same two tokens, in this run or an earlier one; at most ``most`` are counted.
    """
    lengths = [sum(len(segment.tokens) for segment in segments) for segments in runs]
    texts = [[token for segment in segments for token in segment.tokens] for segments in runs]
    # Numbers of their own part the runs: nothing that crosses them occurs twice.
    parted = [[*text, -1 - number] for number, text in enumerate(texts)]
    numbers = np.array([token for text in parted for token in text], np.int64)
    _, classes = np.unique(numbers, return_inverse=True)
    tokens, found = classes, np.zeros(len(numbers), np.int64)
    for length in range(2, most + 3):
        # The class of the `length` tokens from each place on, from that of one token fewer.
        pairs = classes[: len(numbers) - length + 1] * len(numbers) + tokens[length - 1 :]
        _, first, classes = np.unique(pairs, return_index=True, return_inverse=True)
        repeated = np.flatnonzero(first[classes] < np.arange(len(classes)))
        found[repeated] = length - 2
    starts = np.cumsum([0, *[length + 1 for length in lengths[:-1]]])
    return [
        np.concatenate([np.zeros(2, np.int64), found[start : start + length]])[:length]
        for start, length in zip(starts, lengths, strict=True)
    ]


def ceiling(budget: int, runs: Sequence[Sequence[Segment]], known: Sequence[npt.NDArray[np.int64]]) -> Row:
    """Return the row of perfect choices."""
    num_passes = num_written = 0
    for segments, continuations in zip(runs, known, strict=True):
        start = 0
        for segment in segments:
            stop = start + len(segment.tokens)
            if segment.source == "output":
                num_written += stop - start
                while start < stop:
                    start += min(budget, int(continuations[start]), stop - start) + 1
                    num_passes += 1
            start = stop
    return Row(
        "ceiling", "perfect choice behind two or more matched tokens", budget, num_written / num_passes
    )


# --- the store ------------------------------------------------------------------------------------------


class StoreRow(NamedTuple):
    """Seconds of a store for texts with that many tokens in all.

    ``load`` reads and checks, ``make_index`` makes the cache of what was read, ``save_again`` saves what that
    cache holds over what is there.
    """

    tokens: int
    texts: int
    save: float
    load: float
    make_index: float
    save_again: float
    bytes_per_token: float


def time_store(num_tokens: int, num_texts: int) -> StoreRow:
    """Save, load and index texts that repeat themselves and each other, as those of agents do."""
    rng = np.random.default_rng(0)
    phrases = rng.integers(0, 32_000, (max(1, num_tokens // 400), 20), dtype=np.int32)
    chosen = rng.integers(0, len(phrases), -(-num_tokens // phrases.shape[1]))
    tokens = np.ascontiguousarray(phrases[chosen].reshape(-1)[:num_tokens])
    start = time.time() - num_texts
    texts = [
        make_document([(SOURCES[rng.integers(0, 3)], part)], last_used=start + number)
        for number, part in enumerate(np.array_split(tokens, num_texts))
    ]
    settings = SuffixSettings(max_bytes=1 << 34)
    with tempfile.TemporaryDirectory() as folder:
        path, key = Path(folder), StoreKey("benchmark", "benchmark")
        seconds = [time.perf_counter()]
        SuffixStore(path, key, max_bytes=settings.max_bytes).save("a", texts)
        seconds.append(time.perf_counter())
        store = SuffixStore(path, key, max_bytes=settings.max_bytes)
        loaded = store.load("a")
        seconds.append(time.perf_counter())
        cache = SuffixCache(settings)
        cache.restore("a", loaded)
        seconds.append(time.perf_counter())
        store.save("a", cache.snapshot("a"))
        seconds.append(time.perf_counter())
        save, load, make_index, save_again = np.diff(seconds).tolist()
        if not np.array_equal(np.concatenate([document.tokens for document in loaded]), tokens):
            raise RuntimeError("what was loaded is not what was saved")
        num_bytes = sum(file.stat().st_size for file in path.glob("*.suffix"))
    return StoreRow(num_tokens, num_texts, save, load, make_index, save_again, num_bytes / num_tokens)


def time_stores(num_tokens: int) -> list[StoreRow]:
    """Time few long texts and many short ones."""
    warm_up()
    return [time_store(num_tokens, max(1, num_tokens // length)) for length in (5_000, 200)]


# --- command --------------------------------------------------------------------------------------------


def write_out(rows: Sequence[Row] | Sequence[StoreRow], file: Path | None) -> None:
    """Print rows as a table, and write them to a file; to - as JSON alone."""
    if file != Path("-"):
        stores = [row for row in rows if isinstance(row, StoreRow)]
        print_stores(stores) if stores else print_rows([row for row in rows if isinstance(row, Row)])
    if file is not None:
        fields = [row._asdict() if isinstance(row, StoreRow) else asdict(row) for row in rows]
        text = json.dumps(fields, indent=2) + "\n"
        sys.stdout.write(text) if file == Path("-") else file.write_text(text)


def print_stores(rows: Sequence[StoreRow]) -> None:
    table = Table()
    for heading in "tokens|texts|save s|load s|index s|save again s|bytes/token".split("|"):
        table.add_column(heading, justify="right")
    for row in rows:
        seconds = (f"{value:.3f}" for value in (row.save, row.load, row.make_index, row.save_again))
        table.add_row(f"{row.tokens:,}", f"{row.texts:,}", *seconds, f"{row.bytes_per_token:.2f}")
    Console(width=150).print(table)


def print_rows(rows: Sequence[Row]) -> None:
    table = Table()
    headings = "cache|setting|budget|tokens/pass|in vain/token|propose µs p50|p99|update µs/token|bytes/token"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading in ("cache", "setting") else "right")
    for row in rows:
        numbers = (
            f"{row.tokens_per_pass:.3f}",
            *("-" if value is None else f"{value:.2f}" for value in (row.drafted_in_vain,)),
            *(
                "-" if value is None else f"{value:.1f}"
                for value in (
                    row.propose_us_p50, row.propose_us_p99, row.update_us_per_token, row.bytes_per_token,
                )
            ),
        )  # fmt: skip
        table.add_row(row.name, row.setting, str(row.budget), *numbers)
    Console(width=150).print(table)


def measure(runs: Sequence[Sequence[Segment]], budgets: Sequence[int], search: bool) -> list[Row]:
    """Return all rows."""
    sys.stderr.write(f"machine code ready after {warm_up():.1f} s\n")
    known = longest_continuations(runs, max(budgets))
    rows = []
    for budget in budgets:
        best = []
        if search:
            best = [
                ("arctic:chain", best_of(budget, False, runs)),
                ("arctic:tree", best_of(budget, True, runs)),
            ]
        replays = list(replays_of(budget, best))
        replay_all(replays, runs, f"all caches, {budget} drafted tokens")
        rows += [*(replay.row() for replay in replays), ceiling(budget, runs, known)]
    return rows


def _range(text: str) -> slice:
    first, _, last = text.partition(":")
    return slice(int(first) if first else None, int(last) if last else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument(
        "--store-size", type=int, metavar="TOKENS", help="time saving and loading this many tokens instead"
    )
    parser.add_argument("--budgets", nargs="+", type=int, default=[4, 8, 16, 32])
    parser.add_argument(
        "--runs", type=_range, default=slice(None), help="only these, as --runs=0:50 or --runs=-50:"
    )
    parser.add_argument("--no-search", action="store_true", help="leave out arctic:chain and arctic:tree")
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path("-"), help="also to FILE, or only to stdout"
    )
    options = parser.parse_args()
    if (options.store_size is None) == (not options.files):
        parser.error("give either files or --store-size")
    if options.store_size is not None:
        if options.store_size < 1000:
            parser.error(f"--store-size is {options.store_size}; it has to be 1000 or more")
        write_out(time_stores(options.store_size), options.json)
        return
    try:
        runs = read_runs(options.files)[options.runs]
        rows = measure(runs, options.budgets, not options.no_search)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing; install it with: pip install 'reason-spec[bench]'")
    except (DataError, OSError) as error:
        sys.exit(str(error))
    write_out(rows, options.json)


if __name__ == "__main__":
    main()
