"""How often the target accepts a token of a draft, worked out from the distributions of both models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from reason_spec.engines.machine import pick_device, pick_dtype
from reason_spec.engines.model_files import not_loadable, resolve_model
from reason_spec.engines.torch.trimmed_head import read_vocabulary
from reason_spec.evaluation.estimates import Estimate, estimate_pooled_share
from reason_spec.lab.drafts.student import accepted_in_a_row
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.loading import load_causal_lm
from reason_spec.settings import Settings

_ROWS: Final = 128
"""Positions whose distributions are worked out together: a row has the size of the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenAcceptance:
    """The acceptance of draft tokens at the positions of texts that the target wrote.

    Attributes:
        temperature: of the texts and of both models.
        num_tokens: positions.
        alpha: at temperature 0 the share of positions where both models choose the same token, else the mean
            of sum_x min(p(x), q(x)), which rejection sampling accepts (arXiv 2211.17192, corollary 3.6). The
            interval is clustered by text.
        in_a_row: share of positions from which 1, 2, ... greedy draft tokens in a row are accepted; empty
            above temperature 0.
    """

    temperature: float
    num_tokens: int
    alpha: Estimate
    in_a_row: tuple[float, ...] = ()

    @property
    def tokens_per_pass(self) -> float:
        """Expected tokens of a target pass that verifies as many greedy draft tokens as were measured."""
        return 1.0 + sum(self.in_a_row)


class ModelPair:
    """Target and draft in this process, for whole texts. They have one tokenizer.

    Raises:
        EngineError: a model cannot be loaded.
    """

    def __init__(self, settings: Settings) -> None:
        self._device = pick_device(settings.target.device)
        self._target, _ = self._load(settings, "target")
        self._draft, self._vocabulary = self._load(settings, "draft")

    def acceptance(
        self,
        texts: Sequence[TrainingText],
        temperature: float,
        num_drafts: int,
        done: Callable[[], None] = lambda: None,
    ) -> TokenAcceptance:
        """Measure the acceptance on texts that the target wrote at ``temperature``.

        Args:
            num_drafts: drafted tokens in a row that are looked at.
            done: called after each text.
        """
        assert texts, "acceptance is measured on one text at least"
        rows: list[list[float]] = []
        for text in texts:
            rows.append(self._accepted(text, temperature))
            done()
        alpha = estimate_pooled_share([sum(row) for row in rows], [float(len(row)) for row in rows])
        in_a_row: tuple[float, ...] = ()
        if not temperature:
            in_a_row = accepted_in_a_row([[chance > 0 for chance in row] for row in rows], num_drafts)
        return TokenAcceptance(temperature, sum(map(len, rows)), alpha, in_a_row)

    def _load(self, settings: Settings, role: str) -> tuple[Any, Tensor | None]:
        """Return a model and the ids of the tokens that it predicts; None: all."""
        engine = settings.target if role == "target" else settings.draft
        folder = resolve_model(role, engine.model)
        dtype = pick_dtype(engine.dtype, self._device)
        try:
            module: Any = load_causal_lm(
                folder, dtype, revision=engine.revision, trust_remote_code=engine.trust_remote_code
            )
        except Exception as error:
            raise not_loadable(engine.model, error) from error
        predicted = read_vocabulary(folder)
        ids = None if predicted is None else torch.tensor(predicted, device=self._device)
        return module.to(self._device).eval(), ids

    @torch.inference_mode()
    def _accepted(self, text: TrainingText, temperature: float) -> list[float]:
        """Return the chance of acceptance at each token of an answer."""
        tokens = torch.tensor([text.prompt + text.answer], device=self._device)
        first = len(text.prompt) - 1
        target, draft = (module(tokens).logits[0, first:-1] for module in (self._target, self._draft))
        # Output layers may be padded to different sizes; no such token is ever written.
        size = min(target.shape[-1], draft.shape[-1])
        chances: list[float] = []
        for own, drafted in zip(target.split(_ROWS), draft.split(_ROWS), strict=True):
            found = self._chances(
                own[:, :size].float(), self._trimmed(drafted[:, :size].float()), temperature
            )
            chances += found.tolist()
        return chances

    def _chances(self, target: Tensor, draft: Tensor, temperature: float) -> Tensor:
        """Return the chance of acceptance, [rows], by logits [rows, vocabulary]."""
        if not temperature:
            return (target.argmax(-1) == draft.argmax(-1)).float()
        both = torch.minimum(torch.softmax(target / temperature, -1), torch.softmax(draft / temperature, -1))
        return both.sum(-1)

    def _trimmed(self, logits: Tensor) -> Tensor:
        if self._vocabulary is None:
            return logits
        kept = torch.full_like(logits, float("-inf"))
        return kept.index_copy_(-1, self._vocabulary, logits[:, self._vocabulary])
