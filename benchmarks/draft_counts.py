"""Count the tokens of a pass by source and shape of the drafts, at equal `num_draft_tokens`.

    python benchmarks/draft_counts.py [--target MODEL] [--head DIR] [--problems 6] [--samples 4]
        [--temperatures 0.6 1.0] [--budgets 8 24] [--rows NAME ...] [--dtype bfloat16] [--json [FILE]]

The torch engine writes all samples of a problem at once, problem after problem, in this process. Every pass
of every row drafts up to the budget, the greedy tree up to three times as much where nodes have a chance of
one half or more. No draft is left out for the time that it takes, so the counts do not depend on the
machine. ``tokens_per_pass`` are tokens of one sample in one pass of it, ``drafted`` its draft tokens a pass,
``accepted`` the share of those that were right. ``ms_per_token`` is the wall time over all tokens, which
includes the rows' own work between passes; compare it only with little else running.

Each text ends where the target alone begins to loop, as drafts are too easy there. In float32 all rows write
the same tokens; ``same`` is the share of samples that do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import table_forms as forms
from arms import printer, write_rows
from table_columns import COUNTS

from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.drafters import load_drafter
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.evaluation.loops import loop_start
from reason_spec.evaluation.prompts import messages_for, noise_key
from reason_spec.settings import Settings, SuffixSettings, load_settings
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.tasks import REAL_SAMPLE_PATH, load_problems
from reason_spec.types import Prefix, Problem, Usage

MAX_TOKENS: Final = 320
PROBLEM: Final = "problem"
"""Stands for the name of the problem in a row's ``siblings``."""


class RowSpec(NamedTuple):
    """A row: its name, fields of its requests, whether the head drafts, and the suffix cache, None for none.

    All samples share the suffix cache, which learns them while they are written.
    """

    name: str
    fields: Mapping[str, Any]
    head: bool = False
    suffix: SuffixSettings | None = None


_TABLES: Final = {"token_drafter": "recycling", "siblings": PROBLEM}
ROWS: Final = (
    RowSpec("prompt_lookup", {"token_drafter": "prompt_lookup"}),
    RowSpec("recycling", {"token_drafter": "recycling"}),
    RowSpec("stand", {"token_drafter": "stand"}),
    RowSpec("samples", {"token_drafter": "prompt_lookup", "siblings": PROBLEM}),
    RowSpec("samples+recycling", _TABLES),
    RowSpec("suffix", {"token_drafter": "prompt_lookup"}, suffix=SuffixSettings()),
    RowSpec(
        "suffix:published",
        {"token_drafter": "prompt_lookup"},
        suffix=SuffixSettings(rule="published", max_spec_factor=4.0),
    ),
    *(
        RowSpec(f"samples+recycling:{shape}", {**_TABLES, "draft_tree": shape})
        for shape in ("chain", "eagle2", "sequoia")
    ),
    *(
        RowSpec(f"head:{shape}", {"token_drafter": "none", "draft_tree": shape}, head=True)
        for shape in ("greedy", "chain", "eagle2", "sequoia")
    ),
    RowSpec("head:threshold", {"token_drafter": "none", "refusal_threshold": 0.3}, head=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row."""

    name: str
    temperature: float
    budget: int
    samples: int
    tokens: int
    tokens_per_pass: float
    drafted: float
    accepted: float
    ms_per_token: float
    same: float


class FreePasses(PassTimes):
    """Pass times under which every draft token is free."""

    @property
    def least_chance(self) -> float:
        return 0.0

    def tokens_in(self, seconds: float) -> float:
        return 0.0


class Writer:
    """Writes texts on a scheduler; with a suffix cache each is a text of it."""

    def __init__(self, scheduler: Scheduler, earlier: EarlierTexts | None) -> None:
        self._scheduler, self._earlier = scheduler, earlier
        self._num_texts = 0

    def write(self, requests: Sequence[EngineRequest]) -> list[GenerationResult]:
        """Return the results of requests that run at once, in their order."""
        found: dict[int, GenerationResult] = {}
        first = self._num_texts
        for number, request in enumerate(requests, start=first):
            if self._earlier is not None:
                self._earlier.begin(number, "", "", [("prompt", request.prefix.to_tuple())])
            self._scheduler.submit(number, replace(request, text=number if self._earlier else None))
        self._num_texts += len(requests)
        while self._scheduler.has_work:
            for number, result in self._scheduler.step().results:
                assert isinstance(result, GenerationResult), result
                found[number] = result
                if self._earlier is not None:
                    self._earlier.extend(number, result.tokens)
                    self._earlier.close(number)
        return [found[number] for number in range(first, self._num_texts)]


class Bench:
    """The loaded target, and what it writes alone, by temperature, problem and sample."""

    def __init__(self, settings: Settings, problems: Sequence[Problem], samples: int) -> None:
        folder = resolve_model("target", settings.target.model)
        self.settings, self.problems, self.samples = settings, problems, samples
        self.target = settings.target.model_copy(update={"model": folder})
        self.tokenizer = load_tokenizer(folder, None)
        self.model = load_model(self.target)
        self.texts: dict[tuple[float, int, int], tuple[int, ...]] = {}

    def writer(self, spec: RowSpec | None) -> Writer:
        """Return what writes the texts of a row; None: the target alone."""
        self.model.tap = None
        head = spec is not None and spec.head
        earlier = None
        if spec is not None and spec.suffix is not None:
            earlier = EarlierTexts(open_caches(spec.suffix, StoreKey("", "")), rule=spec.suffix.rule)
        scheduler = Scheduler(
            self.model,
            self.tokenizer,
            num_slots=self.target.cache_tokens,
            pass_times=FreePasses(),
            earlier=earlier,
            draft_model=load_drafter(self.target, self.model, lambda _: None) if head else None,
        )
        return Writer(scheduler, earlier)

    def write_alone(self, temperature: float) -> None:
        """Write every text with the target alone; later rows write up to where it loops."""
        writer = self.writer(None)
        for place, problem in enumerate(self.problems):
            requests = [self.request(problem, sample, temperature) for sample in range(self.samples)]
            for sample, result in enumerate(writer.write(requests)):
                length = loop_start(result.tokens) or len(result.tokens)
                self.texts[temperature, place, sample] = result.tokens[:length]

    def measure(self, spec: RowSpec, temperature: float, budget: int) -> Row:
        writer = self.writer(spec)
        usages: list[Usage] = []
        num_same = 0
        started = time.perf_counter()
        for place, problem in enumerate(self.problems):
            texts = [self.texts[temperature, place, sample] for sample in range(self.samples)]
            named = {**spec.fields, "num_draft_tokens": budget, "model_drafts": spec.head}
            if "siblings" in named:
                named["siblings"] = problem.id
            requests = [
                replace(self.request(problem, sample, temperature), max_tokens=len(text), **named)
                for sample, text in enumerate(texts)
            ]
            for text, result in zip(texts, writer.write(requests), strict=True):
                usages.append(result.usage)
                num_same += result.tokens == text
        seconds = time.perf_counter() - started
        usage = Usage.total(usages)
        return Row(
            spec.name,
            temperature,
            budget,
            self.samples,
            usage.num_generated_tokens,
            usage.num_generated_tokens / usage.num_passes,
            usage.num_drafted_tokens / usage.num_passes,
            usage.num_accepted_draft_tokens / max(1, usage.num_drafted_tokens),
            1e3 * seconds / usage.num_generated_tokens,
            num_same / len(usages),
        )

    def request(self, problem: Problem, sample: int, temperature: float) -> EngineRequest:
        sampling = self.settings.sampling.model_copy(update={"temperature": temperature})
        prompt = self.tokenizer.encode_chat(messages_for(problem, self.settings))
        return EngineRequest(
            Prefix(prompt), MAX_TOKENS, sampling=sampling.for_sample(noise_key(problem), sample)
        )


print_rows = printer(
    *COUNTS,
    forms.Column("samples", forms.text("samples")),
    forms.Column("tokens", forms.number("tokens", 0)),
    forms.Column("ms a token", forms.number("ms_per_token", 1)),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="models:smollm2-gsm8k", metavar="MODEL")
    parser.add_argument("--head", default="models:smollm2-gsm8k-head", metavar="DIR")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--problems", type=int, default=6)
    parser.add_argument("--problems-file", type=Path, default=REAL_SAMPLE_PATH)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--rows", nargs="+", choices=[spec.name for spec in ROWS], metavar="NAME")
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    flags: dict[str, Any] = {
        "target.model": options.target,
        "target.dtype": options.dtype,
        "target.drafter": resolve_model("draft", options.head),
    }
    problems = load_problems(options.problems_file, "gsm8k", options.problems).problems
    bench = Bench(load_settings(flags=flags), problems, options.samples)
    specs = [spec for spec in ROWS if options.rows is None or spec.name in options.rows]
    rows: list[Row] = []
    for temperature in options.temperatures:
        bench.write_alone(temperature)
        for spec in specs:
            for budget in options.budgets:
                rows.append(bench.measure(spec, temperature, budget))
                sys.stderr.write(f"{rows[-1]}\n")
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
