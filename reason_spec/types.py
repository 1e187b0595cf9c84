"""Values that all layers share: prefixes, sampling, steps, verdicts, usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["draft", "target", "cache", "inserted"]
"""The source of a step: draft model, target model, suffix cache, or a fixed text that was inserted."""

FinishReason: TypeAlias = Literal["boundary", "eos", "length", "stop", "cancelled", "failed"]
"""Why a generation ended. ``boundary`` ends a step, ``eos`` and ``stop`` end the text."""

Decision: TypeAlias = Literal["accept", "reject", "unknown"]
"""A verifier's decision. After ``unknown`` the target's own step is used, as after ``reject``."""

LossClass: TypeAlias = Literal["exact", "verified", "relaxed", "routed", "shortened"]
"""What may change in an answer: nothing, the wording of a step, tokens where the target is uncertain, the
step itself, or the length.

``shortened``: the thinking may end early, and the share of answers made wrong is bounded.
"""

AcceptanceRule: TypeAlias = Literal["exact", "cascade", "lenient", "judge"]
"""When a draft token is accepted; see `reason_spec.speculation.relaxed_acceptance`."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Key of the counter-based sampling noise, which makes samples independent of batching.

    Requests with equal keys draw the same noise at the same position of the text.
    """

    seed: int = 0
    problem: int = 0
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on the text from its first token. Exactly one of the fields is given.

    ``json_schema`` is JSON text; ``{}`` allows any JSON value. ``regex`` matches the whole text, in the
    syntax of Rust's crate ``regex``. ``choice`` lists the allowed texts. ``grammar`` is in Lark syntax as
    llguidance reads it.

    Raises:
        ValueError: none of the fields is given, or several are.
    """

    json_schema: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__slots__ if getattr(self, name) not in (None, ())]
        if len(given) != 1:
            names = ", ".join(self.__slots__)
            raise ValueError(f"a constraint has one of {names}, not {', '.join(given) or 'none of them'}")

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in self.__slots__ if getattr(self, name) not in (None, ()))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: greedy at ``temperature`` 0, else sampled.

    ``top_k`` 0 and ``top_p`` 1.0 switch the truncations off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    noise: NoiseKey = field(default_factory=NoiseKey)

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0


TokenDrafterName: TypeAlias = Literal["none", "prompt_lookup", "recycling", "stand"]
"""The token-level drafter beside hints and models."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When the target accepts a draft token that is not its own choice.

    ``threshold`` is alpha of `cascade`, theta of `lenient` or the judge's probability, from 0 to 1.
    ``window`` is the number of draft tokens that `lenient` needs after an accepted one.
    """

    rule: AcceptanceRule = "exact"
    threshold: float = 0.0
    window: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether only the target's own choices are accepted: by the rule, or at its strict end."""
        strictest = {"cascade": 0.0, "lenient": 1.0, "judge": 1.0}
        return self.rule == "exact" or self.threshold == strictest[self.rule]


class Prefix:
    """An immutable node of a tree of token sequences: its own ``tokens`` after those of its parent.

    Engines map the tokens of a node to their cached keys and values. ``len(prefix)`` counts all tokens from
    the root. ``owner`` is that of the root; engines reuse keys and values only within one owner.
    """

    __slots__ = ("__weakref__", "_length", "owner", "parent", "tokens")

    def __init__(
        self, tokens: tuple[int, ...] = (), parent: Prefix | None = None, *, owner: str = ""
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.owner: str = owner if parent is None else parent.owner
        self._length = len(tokens) + (len(parent) if parent is not None else 0)

    def __len__(self) -> int:
        return self._length

    def extend(self, tokens: tuple[int, ...]) -> Prefix:
        """Return the prefix that continues this one with ``tokens``."""
        return Prefix(tokens, self)

    def nodes(self) -> Iterator[Prefix]:
        """Yield this node and its ancestors, nearest first."""
        node: Prefix | None = self
        while node is not None:
            yield node
            node = node.parent

    def to_tuple(self) -> tuple[int, ...]:
        """Return all token ids from the root."""
        return self.tokens_after(0)

    def tokens_after(self, count: int) -> tuple[int, ...]:
        """Return the token ids after the first ``count``, without reading those before."""
        runs: list[tuple[int, ...]] = []
        for node in self.nodes():
            if len(node) <= count:
                break
            start = len(node) - len(node.tokens)
            runs.append(node.tokens[max(0, count - start) :])
        return tuple(chain.from_iterable(reversed(runs)))


@dataclass(frozen=True, slots=True)
class Usage:
    """Work done by one engine, cancelled work included.

    ``num_passes`` counts forward passes by request: a pass over several requests counts once for each.
    ``num_rejections`` counts passes in which a draft token was rejected. ``acceptance_histogram`` counts
    passes with drafts by the number of accepted tokens; its sum is vLLM's number of drafts.
    """

    num_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_discarded_tokens: int = 0
    num_passes: int = 0
    num_rejections: int = 0
    num_drafted_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_scored_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()

    @property
    def num_prefilled_tokens(self) -> int:
        """Prompt tokens that were not in the engine's cache and had to be prefilled."""
        return self.num_prompt_tokens - self.num_cached_prompt_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage.total((self, other))

    @staticmethod
    def total(usages: Sequence[Usage]) -> Usage:
        """Return the sum. Adding field by field is many times faster than adding pairs."""
        names = [field.name for field in fields(Usage) if field.name != "acceptance_histogram"]
        counts = {name: sum(map(attrgetter(name), usages)) for name in names}
        histograms = zip_longest(*(usage.acceptance_histogram for usage in usages), fillvalue=0)
        return Usage(**counts, acceptance_histogram=tuple(map(sum, histograms)))

    @property
    def alpha_token(self) -> float | None:
        """Share of draft tokens that the model accepted; None if nothing was drafted."""
        if self.num_drafted_tokens == 0:
            return None
        return self.num_accepted_draft_tokens / self.num_drafted_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned speculation for one answer: steps ahead, and draft tokens in each branch of a pass.

    ``tokens_per_second`` is the predicted speed, None without a prediction. For the first pass the suffix
    cache would draft ``num_known`` tokens and expects ``known_tokens`` of them to be accepted.
    """

    depth: int
    num_draft_tokens: int
    tokens_per_second: float | None = None
    known_tokens: float = 0.0
    num_known: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's decision about one drafted step.

    ``score`` is the verifier's own measure, higher is better; None if it has none. ``cost_seconds`` and
    ``cost_tokens`` are the cost of the verdict, and ``work`` the part done by the target's engine.
    ``num_valid_tokens`` counts the leading tokens of a rejected step before the first wrong one;
    ``replacement`` is the target's token at that place. Both are None if the verifier does not know them.
    """

    decision: Decision
    score: float | None = None
    cost_seconds: float = 0.0
    cost_tokens: int = 0
    reason: str = ""
    work: Usage = field(default_factory=Usage)
    num_valid_tokens: int | None = None
    replacement: int | None = None

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"

    def with_costs_of(self, earlier: Verdict) -> Verdict:
        """Return this verdict plus the costs of an earlier one on the same step."""
        return replace(
            self,
            cost_seconds=self.cost_seconds + earlier.cost_seconds,
            cost_tokens=self.cost_tokens + earlier.cost_tokens,
            work=self.work + earlier.work,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the reasoning that ends at a boundary, or at the end of the text.

    ``tokens`` are ids of the tokenizer ``tokenizer_id``, that of the model that wrote the step. ``verdict``
    accepted this drafted step, or rejected the draft that this step of the target replaces; None without a
    draft. ``logprobs`` is None where they are not known; that of a token that ends the text may be NaN.
    ``num_stop_overlap`` counts characters of the stop string in the steps before this one. ``first_entropy``
    is that of the model that wrote the step before its first token, in nats; None where it is not known.
    """

    text: str
    tokens: tuple[int, ...]
    origin: Origin
    finish: FinishReason
    tokenizer_id: str = ""
    logprobs: tuple[float, ...] | None = None
    verdict: Verdict | None = None
    num_stop_overlap: int = 0
    first_entropy: float | None = None

    @property
    def ends_text(self) -> bool:
        return self.finish in ("eos", "stop")


@dataclass(frozen=True, slots=True)
class Problem:
    """One question of a task, with its reference answer if there is one.

    ``level`` is the difficulty given in its file, such as ``3`` or ``Level 3``; None if none is given.
    """

    id: str
    question: str
    answer: str | None = None
    task: str = "auto"
    level: str | None = None
