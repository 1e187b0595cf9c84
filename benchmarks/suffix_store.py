"""Time saving and loading the texts of a suffix cache.

    python benchmarks/suffix_store.py [--tokens 1000000] [--json [FILE]]

Rows: few long texts and many short ones, which repeat themselves and each other as those of agents do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from arms import printer, write_rows
from table_forms import Column, number
from text_columns import STORE

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import SOURCES
from reason_spec.suffix.cache import SuffixCache, warm_up
from reason_spec.suffix.documents import make_document
from reason_spec.suffix.store import SuffixStore
from reason_spec.suffix.tenant_file import StoreKey


@dataclass(frozen=True, slots=True)
class Row:
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


def time_store(num_tokens: int, num_texts: int) -> Row:
    """Save, load and index texts."""
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
    return Row(num_tokens, num_texts, save, load, make_index, save_again, num_bytes / num_tokens)


print_rows = printer(Column("tokens", number("tokens", 0)), *STORE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000, help="default: 1000000")
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path("-"), help="also to FILE, or only to stdout"
    )
    options = parser.parse_args()
    if options.tokens < 1000:
        parser.error(f"--tokens is {options.tokens}; it has to be 1000 or more")
    warm_up()
    rows = [time_store(options.tokens, max(1, options.tokens // length)) for length in (5_000, 200)]
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
