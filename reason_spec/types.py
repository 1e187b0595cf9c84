"""The values every room of the accelerator speaks: prefixes, sampling, steps, verdicts, usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["draft", "target", "cache", "inserted"]
"""Who wrote a step: the small model, the large model, the suffix cache, or no model: it was put in."""

FinishReason: TypeAlias = Literal["boundary", "eos", "length", "stop", "cancelled", "failed"]
"""Why a generation ended. ``boundary`` ends a step, ``eos`` and ``stop`` end the text."""

Decision: TypeAlias = Literal["accept", "reject", "unknown"]
"""A verifier's answer; ``unknown`` means that it could not tell, and the target's step stands."""

LossClass: TypeAlias = Literal["exact", "verified", "routed"]
"""What a mode may change: nothing, the wording of a step, or the step itself."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Keys the counter-based sampling noise, so that a sample does not depend on batching.

    Two requests with equal keys draw the same noise at the same position of the text.
    """

    seed: int = 0
    problem: int = 0
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text may be, from its first token on. Exactly one of the fields is given.

    ``json_schema`` is a JSON schema as JSON text; ``{}`` stands for any JSON value. ``regex`` matches the
    whole text, in the syntax of Rust's crate ``regex``. ``choice`` lists the texts to choose from, and
    ``grammar`` is one in Lark syntax as llguidance reads it.

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


class Prefix:
    """An immutable run of token ids that shares everything before it with its parent.

    Strategies hold nodes; engines map the tokens of a node to the keys and values they have
    already computed. ``len(prefix)`` counts all tokens from the root.

    ``owner`` says whose text it is, and is that of its root: engines use again what they computed for the
    same owner alone.
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
        """Yield this node and its ancestors, the nearest first."""
        node: Prefix | None = self
        while node is not None:
            yield node
            node = node.parent

    def to_tuple(self) -> tuple[int, ...]:
        """Return all token ids from the root on."""
        return self.tokens_after(0)

    def tokens_after(self, count: int) -> tuple[int, ...]:
        """Return the token ids behind the first ``count``, without reading what stands before them."""
        runs: list[tuple[int, ...]] = []
        for node in self.nodes():
            if len(node) <= count:
                break
            start = len(node) - len(node.tokens)
            runs.append(node.tokens[max(0, count - start) :])
        return tuple(chain.from_iterable(reversed(runs)))


@dataclass(frozen=True, slots=True)
class Usage:
    """Work done by one engine; cancelled work is counted where it was done.

    ``num_passes`` counts forward passes in which a request took part: a pass shared by several
    requests counts once for each of them. ``num_rejections`` counts those in which the model went on
    with another token than was drafted, and ``acceptance_histogram`` those that had drafts, by how many of
    these stood: its sum is vLLM's number of drafts.
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
        """Tokens of prompts that the model had to read: those that the engine did not have in its cache."""
        return self.num_prompt_tokens - self.num_cached_prompt_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage.total((self, other))

    @staticmethod
    def total(usages: Sequence[Usage]) -> Usage:
        """Add up field by field, which is many times faster than one by one."""
        names = [field.name for field in fields(Usage) if field.name != "acceptance_histogram"]
        counts = {name: sum(map(attrgetter(name), usages)) for name in names}
        histograms = zip_longest(*(usage.acceptance_histogram for usage in usages), fillvalue=0)
        return Usage(**counts, acceptance_histogram=tuple(map(sum, histograms)))

    @property
    def alpha_token(self) -> float | None:
        """Share of token-level drafts that the model confirmed; None where nothing was drafted."""
        if self.num_drafted_tokens == 0:
            return None
        return self.num_accepted_draft_tokens / self.num_drafted_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """How to write one answer: steps ahead, and token drafts in each branch of a pass.

    ``tokens_per_second`` is what was expected of it, None where nothing was. Of the first pass the
    suffix cache would draft ``num_known`` tokens and expected ``known_tokens`` of them to be right.
    """

    depth: int
    num_draft_tokens: int
    tokens_per_second: float | None = None
    known_tokens: float = 0.0
    num_known: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer about one drafted step.

    ``score`` is the verifier's own measure (higher means more likely the same step), None where it
    has none. ``cost_seconds`` and ``cost_tokens`` are what this verdict took, ``work`` what of it the
    target's engine did. ``num_sound`` counts the leading tokens of a refused step that nothing is to be
    said against, and ``instead`` is the token to go on with there; None where the verifier cannot tell.
    """

    decision: Decision
    score: float | None = None
    cost_seconds: float = 0.0
    cost_tokens: int = 0
    reason: str = ""
    work: Usage = field(default_factory=Usage)
    num_sound: int | None = None
    instead: int | None = None

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"

    def with_costs_of(self, earlier: Verdict) -> Verdict:
        """Return this verdict with the costs of an earlier one on the same step added."""
        return replace(
            self,
            cost_seconds=self.cost_seconds + earlier.cost_seconds,
            cost_tokens=self.cost_tokens + earlier.cost_tokens,
            work=self.work + earlier.work,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of reasoning that ends at a boundary, or at the end of the text.

    ``tokens`` are ids of the tokenizer named by ``tokenizer_id``: the model that wrote them.
    ``verdict`` is the verifier's answer that let a drafted step stand, or that refused the draft
    in whose place the target's step stands; None where there was no draft to compare.
    ``num_stop_overlap`` counts characters of the stop string in the steps before this one.
    """

    text: str
    tokens: tuple[int, ...]
    origin: Origin
    finish: FinishReason
    tokenizer_id: str = ""
    logprobs: tuple[float, ...] | None = None
    verdict: Verdict | None = None
    num_stop_overlap: int = 0

    @property
    def ends_text(self) -> bool:
        return self.finish in ("eos", "stop")


@dataclass(frozen=True, slots=True)
class Problem:
    """One question of a task, with the reference answer where there is one.

    ``level`` is how hard its file says it is, as ``3`` or ``Level 3``, None where it does not say.
    """

    id: str
    question: str
    answer: str | None = None
    task: str = "auto"
    level: str | None = None
