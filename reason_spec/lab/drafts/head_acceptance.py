"""How often the target accepts a token of a head, worked out on texts that the target wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reason_spec.accelerator.engine_drafter import drafter_folder
from reason_spec.engines.machine import pick_device
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.evaluation.estimates import estimate_pooled_share
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.lab.drafts.token_acceptance import TokenAcceptance
from reason_spec.settings import Settings


class HeadPair:
    """Target and head in this process, for whole texts.

    Raises:
        EngineError: a file of the head is missing or damaged, or the target cannot be loaded.
        UnsupportedModelError: the target's layers are not made like Llama's.
    """

    def __init__(self, settings: Settings) -> None:
        folder = drafter_folder(settings.draft.model)
        self._tokens = EagleHead.load(folder).tokens
        target = settings.target
        self._student = HeadStudent(
            resolve_model("target", target.model),
            target.model,
            self._tokens.tolist(),
            pick_device(target.device),
            revision=target.revision,
            trust_remote_code=target.trust_remote_code,
        )
        self._student.load(folder)

    def acceptance(
        self,
        texts: Sequence[TrainingText],
        temperature: float,
        num_drafts: int,
        done: Callable[[], None] = lambda: None,
    ) -> TokenAcceptance:
        """Measure the acceptance on texts that the target wrote at ``temperature``.

        Args:
            num_drafts: drafted tokens in a row that are looked at; at temperature 0 alone.
            done: called after each text.
        """
        assert texts, "acceptance is measured on one text at least"
        rows: list[list[float]] = []
        for text in texts:
            rows.append(self._sampled(text, temperature) if temperature else self._greedy(text, num_drafts))
            done()
        sizes = [float(len(text.answer)) for text in texts]
        alpha = estimate_pooled_share([row[0] for row in rows], sizes)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        in_a_row = () if temperature else tuple(number / sum(sizes) for number in sums)
        return TokenAcceptance(temperature, sum(len(text.answer) for text in texts), alpha, in_a_row)

    def _greedy(self, text: TrainingText, num_drafts: int) -> list[float]:
        """Return the numbers of places from which 1, 2, ... drafts in a row are accepted."""
        accepted = self._student.agreement([[text]], num_drafts).accepted
        return [share * len(text.answer) for share in accepted]

    @torch.no_grad()
    def _sampled(self, text: TrainingText, temperature: float) -> list[float]:
        """Return the expected number of accepted tokens, each drafted from the target's own states."""
        ((logits, _, _),) = self._student.draft_steps([text], 1)
        drafted = torch.softmax(logits.float() / temperature, -1)
        target = torch.softmax(self._student.target_logits(text)[-len(drafted) :] / temperature, -1)
        return [float(torch.minimum(drafted, target[:, self._tokens.to(target.device)]).sum())]
