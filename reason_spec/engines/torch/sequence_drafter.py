"""The drafts of one sequence: one tree of what hints, models, earlier texts and the text itself propose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reason_spec.engines.generation import TIMES_IF_LIKELY, EngineRequest, Hint
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.texts import SharedArray
from reason_spec.speculation.draft_calibration import DraftCalibration, HintRate, LookupRate, ModelDraftRates
from reason_spec.speculation.draft_tree import (
    ChainSource,
    NextTokens,
    Path,
    PredictedSource,
    Source,
    TreeSource,
    united,
    worthwhile,
)
from reason_spec.speculation.drafters import HintDrafter, look_up
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import ASSUMED_RATE, Demand, mean_rate
from reason_spec.speculation.recycling import RecycledTokens, with_noise
from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.speculation.tree_shapes import RankRates, beam, chain, fixed_shape
from reason_spec.suffix.base import Proposal

_LIKELY = 0.5
"""Drafts with at least this chance may exceed ``num_draft_tokens``."""
_LEAST_OF_THRESHOLD = 2
"""Tokens that a model drafts at least under a threshold of refusal; SpecDec++'s program."""
_LEAST = 0.02
"""No less likely token is drafted, also where the times of passes are not known."""


class DraftRates:
    """What an engine has learned from the drafts of all requests of one cache key.

    Args:
        vocab_size: the length of the model's logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.hinted = HintRate()
        self.looked_up = LookupRate()
        self.by_model = ModelDraftRates()
        self.predicted = DraftCalibration()
        """Of the predictions of a model in the engine, token by token."""
        self.recycled = DraftCalibration()
        self.by_siblings = DraftCalibration()
        self.by_rank = RankRates()
        self.tables: dict[str, RecycledTokens] = {}
        self.forget_predictions()

    def forget_predictions(self) -> None:
        """Drop the recycled predictions, which take far more memory than the rates."""
        self.tables = {
            "recycling": RecycledTokens((2, 1), vocab_size=self.vocab_size),
            "stand": RecycledTokens((4, 3, 2), averages=True),
        }

    def gain_of_next(
        self, drafted: Proposal, num_looked_up: int = 0, text_length: int = 0, covered: float = 0.0
    ) -> float:
        """Return the expected tokens by which one more token of a model's chain makes a pass longer.

        It is accepted with the chain, and gains nothing where as many tokens of other sources are right.

        Args:
            num_looked_up: tokens of prompt lookup that are verified beside the chain.
            text_length: tokens of the text before it.
            covered: the chance that as many tokens of earlier texts are right.
        """
        length = len(drafted.tokens) + 1
        if length <= num_looked_up:
            covered = self.looked_up.chance(length)
        return self.by_model.chance_of_next(drafted, text_length) * (1.0 - covered)


class ModelDraft(NamedTuple):
    """What a model in the engine has drafted for the next pass: a chain, and its predictions by path."""

    chain: Proposal = Proposal()
    predicted: Mapping[Path, NextTokens] = {}

    def after(self, path: Path) -> NextTokens:
        return self.predicted.get(path, NextTokens())


class SequenceDrafter:
    """Drafts the next tokens of one sequence.

    Args:
        tokens: the text so far, which grows.
        output: the generated part of it.
        choice: holds the constraint, which drafts must not break.
        earlier: earlier texts to draft from; None for none.
        rates: acceptance rates over all requests of the same cache key.
        siblings: what passes predicted in the samples of the same problem; None where they do not share.
    """

    def __init__(
        self,
        request: EngineRequest,
        tokens: SharedArray,
        output: RequestOutput,
        choice: TokenChoice,
        earlier: EarlierTexts | None,
        rates: DraftRates,
        siblings: RecycledTokens | None = None,
    ) -> None:
        self._request = request
        self._tokens = tokens
        self._output = output
        self._choice = choice
        self._earlier = earlier if request.text is not None else None
        self._rates = rates
        self._hints: dict[int, tuple[HintDrafter, HintRate]] = {}
        self._model_draft = ModelDraft()
        found = [
            (rates.tables.get(request.token_drafter), rates.recycled),
            (siblings, rates.by_siblings),
        ]
        self._tables = [(table, calibration) for table, calibration in found if table is not None]
        self._looked_up: tuple[int, list[int]] = 0, []
        """The length of the text, and what prompt lookup found for it."""
        self._found_earlier: tuple[TreeSource, ...] | None = None
        """What earlier texts know for the next pass; None until they are searched."""
        self._sources: list[Source] = []
        self._predicted: list[Source] = []
        """The sources whose tokens a model predicted after this very text."""
        self._drafted: Proposal | None = None
        """The tree of all sources for the next pass, the most likely first; None until it is asked for."""

    def offer_hint(self, hint: Hint) -> None:
        """Replace the hint of one index; hints of all indices are followed."""
        if hint.index not in self._hints:
            rate = HintRate(self._rates.hinted if hint.index == 0 else None)
            self._hints[hint.index] = HintDrafter(generated=self._output.tokens), rate
        self._hints[hint.index][0].offer(hint.tokens, hint.start)
        self._found_earlier = self._drafted = None

    @property
    def model_budget(self) -> int:
        """The most tokens that a model in the engine may draft; 0 where a hint applies.

        Under the published rule it is 0 where earlier texts know something, which then draft alone.
        """
        if not self._request.model_drafts or self._hinted(1):
            return 0
        if self._is_published and self._from_earlier():
            return 0
        return max(0, self._longest)

    def gain_of_next(self, drafted: Proposal) -> float:
        """Return the expected gain of one more token in a draft of a model in the engine."""
        earlier = self._from_earlier()
        covered = sum(tree.chance(len(drafted.tokens) + 1) for tree in earlier)
        num_looked_up = 0 if earlier else len(self._look_up())
        return self._rates.gain_of_next(drafted, num_looked_up, len(self._tokens), covered)

    def is_long_enough(self, drafted: Proposal) -> bool:
        """Return whether a model's draft ends by SpecDec++'s rule (arXiv 2405.19715); False without it.

        It ends where one of its tokens is refused with more than the threshold's chance. The paper trains a
        head for the chances; here they are the draft's own, corrected by outcomes.
        """
        threshold = self._request.refusal_threshold
        if threshold is None or len(drafted.tokens) < _LEAST_OF_THRESHOLD:
            return False
        return 1.0 - self._rates.by_model.chance_of(drafted) > threshold

    def offer_model_draft(self, draft: ModelDraft) -> None:
        """Take what a model in the engine has drafted for the next pass."""
        self._model_draft = draft
        self._drafted = None

    @property
    def recycles(self) -> bool:
        """Whether passes are asked for their most likely tokens."""
        return bool(self._tables)

    def recycle(self, drafts: TokenTree, seen: Sequence[NextTokens], accepted: Sequence[int]) -> None:
        """Keep the predictions of a pass: after the last token of the text, and after each draft."""
        tail = self._tail
        texts = [tail]
        for token, parent in zip(drafts.tokens, drafts.parents, strict=True):
            texts.append([*(tail if parent == ROOT else texts[parent + 1]), token])
        for node, (text, found) in enumerate(zip(texts, seen, strict=True), start=ROOT):
            for table, _ in self._tables:
                table.learn(text, found, is_rejected=node not in (ROOT, *accepted))

    @property
    def reads_earlier(self) -> bool:
        """Whether drafts may come from earlier texts."""
        return self._earlier is not None

    @property
    def demand(self) -> Demand:
        """The number of tokens that could be drafted for the next pass, and their acceptance rate.

        Where earlier texts are read it says nothing of what they hold: other requests see their share shrink.
        """
        if self.reads_earlier:
            return Demand(ASSUMED_RATE, max(0, self._longest))
        found = self._draft()
        return Demand(mean_rate(found.chances), len(found.tokens))

    def propose(self, least_chance: float = 0.0, limit: int | None = None) -> TokenTree:
        """Return the most likely drafts of all sources as one tree.

        Args:
            least_chance: the chance below which a token costs more time than it saves. The first one is
                drafted in any case. It does not apply to what earlier texts propose: what a tenant
                gets of them must not depend on the speed that others leave.
            limit: the most tokens; None for as many as the request allows.
        """
        exempt = frozenset[Path]().union(*(tree.paths for tree in self._from_earlier()))
        drafts, longest = worthwhile(self._draft(), least_chance, exempt), self._longest
        if limit is not None:
            drafts, longest = drafts.first(limit), min(limit, longest)
        return self._choice.drafts(drafts.pruned(self._output.length_to_end), longest)

    def is_copied(self, path: Path) -> bool:
        """Return whether a drafted token, the last of a path, is only copied: no model predicted it there."""
        *before, token = path
        offered = (source.after(tuple(before)).tokens for source in self._predicted)
        return not any(token in tokens for tokens in offered)

    def learn(self, generated: Sequence[int]) -> None:
        """Update the acceptance rates by the tokens that the pass generated."""
        if self._request.draft_tree == "sequoia":
            self._rates.by_rank.learn(self._sources, generated)
        for source in self._sources:
            source.learn(generated)
        self._rates.by_model.learn(self._model_draft.chain, generated, len(self._tokens))
        self._sources, self._predicted, self._model_draft = [], [], ModelDraft()
        self._found_earlier = self._drafted = None

    def follow(self, tokens: Sequence[int]) -> None:
        """Advance the hints along new tokens of the text."""
        for hint, _ in self._hints.values():
            hint.extend(tokens)

    @property
    def _room(self) -> int:
        return self._output.max_tokens - len(self._output.tokens) - 1

    @property
    def _longest(self) -> int:
        return min(self._request.num_draft_tokens, self._room)

    @property
    def _most(self) -> int:
        """The most tokens of a draft whose tokens are likely."""
        return min(TIMES_IF_LIKELY * self._request.num_draft_tokens, self._room)

    def _look_up(self) -> list[int]:
        """Return what prompt lookup finds; a text is searched once at each length."""
        if self._request.token_drafter == "none":
            return []
        if self._looked_up[0] != len(self._tokens):
            self._looked_up = len(self._tokens), look_up(self._tokens.values, self._longest)
        return self._looked_up[1]

    def _draft(self) -> Proposal:
        if self._drafted is None:
            self._predicted, copied = self._gather() if self._longest > 0 else ([], [])
            self._sources = [*self._predicted, *copied]
            self._drafted = self._chosen(self._sources, self._longest, self._most)
        return self._drafted

    def _chosen(self, sources: Sequence[Source], budget: int, most: int) -> Proposal:
        """Return the nodes of the tree, in descending order of chance."""
        match self._request.draft_tree:
            case "chain":
                return chain(sources, budget, _LEAST)
            case "eagle2":
                return beam(sources, budget, _LEAST)
            case "sequoia":
                return fixed_shape(sources, budget, _LEAST, self._rates.by_rank.rates)
            case "greedy":
                return united(sources, budget, _LEAST, most, _LIKELY)

    def _gather(self) -> tuple[list[Source], list[Source]]:
        """Return all that may know the next tokens: what models predict there, and what is copied.

        Under the published rule earlier texts draft alone where they score enough (SuffixDecoding's hybrid
        rule, arXiv 2411.04975).
        """
        earlier = self._from_earlier()
        if self._is_published and earlier:
            return [], [*earlier]
        predicted: list[Source] = [ChainSource(path, rate) for path, rate in self._hinted(self._most)]
        if self._model_draft.predicted:
            predicted.append(PredictedSource(self._model_draft.after, self._rates.predicted))
        copied: list[Source] = [*earlier]
        # Earlier texts hold this one too, so a lookup would count the same tokens twice.
        if not earlier and (looked_up := self._look_up()):
            copied.append(ChainSource(looked_up, self._rates.looked_up))
        for table, calibration in self._tables:
            copied.append(PredictedSource(self._recycled(table), calibration))
        return predicted, copied

    def _hinted(self, budget: int) -> list[tuple[list[int], HintRate]]:
        """Return up to ``budget`` next tokens of each hint that applies, and its rate."""
        return [(path, rate) for hint, rate in self._hints.values() if (path := hint.propose(budget))]

    @property
    def _is_published(self) -> bool:
        return self._earlier is not None and self._earlier.rule == "published"

    def _from_earlier(self) -> tuple[TreeSource, ...]:
        """Return the continuations of earlier texts, behind a hint if there is one, as one tree or none."""
        if self._found_earlier is None:
            hints = [] if self._is_published else self._hinted(self._most)
            hinted = tuple(hints[0][0]) if hints else ()
            self._found_earlier = self._search_earlier(hinted) if len(hints) < 2 else ()
        return self._found_earlier

    def _search_earlier(self, hinted: Path) -> tuple[TreeSource, ...]:
        text, earlier = self._request.text, self._earlier
        ends = bool(hinted) and self._output.length_to_end(hinted) is not None
        if text is None or earlier is None or ends or (calibration := earlier.calibration(text)) is None:
            return ()
        final = self._request.is_final
        room = self._most - len(hinted)
        found = earlier.propose(text, self._tokens.values, room, tree=True, final=final, drafted=hinted)
        return (TreeSource(found, calibration, hinted),) if found.tokens else ()

    @property
    def _tail(self) -> list[int]:
        """The last tokens of the text, as far as the tables read them."""
        longest = max(table.num_read for table, _ in self._tables)
        tail: list[int] = self._tokens.values[-longest:].tolist()
        return tail

    def _recycled(self, table: RecycledTokens) -> Callable[[Path], NextTokens]:
        """Return a function from a path to what earlier passes predicted after the same last tokens."""
        tail, length, sampling = self._tail, len(self._tokens), self._request.sampling

        def find(path: Path) -> NextTokens:
            found = table.find([*tail, *path])
            return with_noise(found, sampling, length + len(path), self._rates.vocab_size)

        return find
