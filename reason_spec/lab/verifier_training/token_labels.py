"""Label draft tokens that the target would refuse: does it still reach the same answer after them?

Judge Decoding (arXiv 2501.19309) asks people; here the target continues after the token, and its answer is
compared with the one that it gave itself, as in AutoJudge (arXiv 2504.20039). So no answers of others are
needed, and a target that solves few problems gives as many labels. Everything is greedy.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.engines.generation import EngineRequest
from reason_spec.errors import DataError, first_mistake
from reason_spec.evaluation.prompts import messages_for, stops_for
from reason_spec.evaluation.record_folder import RecordFolder
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.tasks.base import get_task
from reason_spec.tasks.grading import Grader
from reason_spec.types import Prefix, Problem


@dataclass(frozen=True, slots=True)
class LabelledDrafts:
    """The target's answer to one problem, and what the draft would have written at each place of it.

    ``drafted`` has one token for each of ``answer``. ``labels`` are pairs of a place where they differ and
    whether the target, continuing after the drafted token, reached the same final answer: then the token is
    right. Both are empty where the target gave no answer.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    drafted: tuple[int, ...] = ()
    labels: tuple[tuple[int, bool], ...] = ()

    @classmethod
    def from_json(cls, record: object) -> LabelledDrafts:
        """Read what ``asdict`` made of it.

        Raises:
            ValueError: a field is missing, unknown or of another kind.
        """
        try:
            return TypeAdapter(cls).validate_python(record)
        except ValidationError as error:
            raise ValueError(f"no labelled drafts: {first_mistake(error)}") from None


class TokenLabelFolder(RecordFolder[tuple[str, LabelledDrafts]]):
    """Labels by the key of their problem, one line each; a stopped labelling goes on where it was.

    Args:
        about: what decides the labels: models, settings and options.
    """

    records_file: ClassVar[str] = "labels.jsonl"
    identity_file: ClassVar[str] = "labels.json"
    content: ClassVar[str] = "labels"

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.labelled: dict[str, LabelledDrafts] = {}
        super().__init__(path, about, fresh=fresh)

    def append(self, problem: str, drafts: LabelledDrafts) -> None:
        """Store the labels of a problem; they survive a kill from the moment this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        self._append({"problem": problem, "drafts": asdict(drafts)})
        self.labelled[problem] = drafts

    @staticmethod
    def _parse(line: str) -> tuple[str, LabelledDrafts]:
        record = json.loads(line)
        return record["problem"], LabelledDrafts.from_json(record["drafts"])

    def _take(self, record: tuple[str, LabelledDrafts]) -> None:
        problem, drafts = record
        self.labelled[problem] = drafts


class TokenLabeller:
    """Labels the draft tokens of problems.

    Args:
        most: labels of one problem; of more refused tokens a random choice is labelled.

    Raises:
        DataError: the two models have different tokenizers.
    """

    def __init__(self, accelerator: Accelerator, grader: Grader, most: int, seed: int) -> None:
        assert accelerator.draft is not None, "draft tokens are those of a draft"
        self._target, self._draft = accelerator.target, accelerator.draft
        self._settings = accelerator.settings
        self._grader = grader
        self._most = most
        self._seed = seed
        if not can_share_tokens(self._draft, self._target):
            raise DataError(
                "target and draft have different tokenizers, so no token of the draft can be judged: name "
                "a draft of the target's family with --draft"
            )

    async def label(self, problem: Problem) -> LabelledDrafts:
        """Answer a problem and label the draft tokens that the target would refuse.

        Raises:
            EngineError: an engine failed.
        """
        prompt = Prefix(self._target.tokenizer.encode_chat(messages_for(problem, self._settings)))
        result = await self._target.submit(self._request(prompt)).result()
        own = get_task(problem.task).extract(result.text)
        if own is None:
            return LabelledDrafts(prompt.to_tuple(), result.tokens)
        drafted = (await self._draft.score(prompt, result.tokens)).best
        pairs = zip(drafted, result.tokens, strict=True)
        refused = [place for place, (token, written) in enumerate(pairs) if token != written]
        if len(refused) > self._most:
            refused = sorted(random.Random(f"{self._seed} {problem.id}").sample(refused, self._most))
        rights = await asyncio.gather(
            *(self._leads_to(own, problem, prompt, result.tokens, drafted[place], place) for place in refused)
        )
        labels = tuple(zip(refused, rights, strict=True))
        return LabelledDrafts(prompt.to_tuple(), result.tokens, drafted, labels)

    async def _leads_to(
        self, own: str, problem: Problem, prompt: Prefix, answer: tuple[int, ...], token: int, place: int
    ) -> bool:
        """Return whether the answer stays ``own`` if a drafted token replaces the target's at a place."""
        written = (*answer[:place], token)
        left = self._settings.sampling.max_tokens - len(written)
        if token not in self._target.tokenizer.eos_ids and left > 0:
            # The rest is often the same as before.
            request = self._request(prompt.extend(written), left, hint=answer[place + 1 :])
            written += (await self._target.submit(request).result()).tokens
        text = self._target.tokenizer.decode(written)
        return (await self._grader.grade_async(text, own, problem.task)).correct is True

    def _request(
        self, prompt: Prefix, max_tokens: int | None = None, hint: tuple[int, ...] = ()
    ) -> EngineRequest:
        return EngineRequest(
            prompt,
            max_tokens or self._settings.sampling.max_tokens,
            stops=stops_for(self._settings),
            hint=hint,
            token_drafter="prompt_lookup",
            stream=False,
        )
