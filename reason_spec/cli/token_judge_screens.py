"""`reason-spec verifier train --level token` on the screen: labelling and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reason_spec.accelerator import Accelerator
from reason_spec.cli.screen import Screen
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.weights import identify_model
from reason_spec.evaluation.record_folder import problem_key
from reason_spec.evaluation.sources import Sources
from reason_spec.lab.verifier_training.token_labels import TokenLabelFolder, TokenLabeller
from reason_spec.lab.verifier_training.token_training import TrainedJudge, train_judge
from reason_spec.settings import Settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem


@dataclass(frozen=True, slots=True)
class LabellingOptions:
    """How draft tokens are labelled: ``most`` of a problem, ``concurrency`` problems at once."""

    most: int
    concurrency: int
    seed: int
    fresh: bool


async def train_token_judge(
    settings: Settings, sources: Sources, options: LabellingOptions, output: Path, screen: Screen
) -> TrainedJudge:
    """Label draft tokens of all problems into a folder, and train a judge; labelled problems are skipped.

    Raises:
        DataError: there are too few labels.
        ResumeError: the folder holds labels of other models or settings.
    """
    tree = settings.model_dump(mode="json")
    about = {
        "target": identify_model("target", settings.target),
        "draft": identify_model("draft", settings.draft),
        **{name: tree[name] for name in ("sampling", "task")},
        "most": options.most,
        "seed": options.seed,
    }
    with TokenLabelFolder(output, about, fresh=options.fresh) as labels:
        left = [problem for problem in sources.problems if problem_key(problem) not in labels.labelled]
        if left:
            await _label(settings, left, options, labels, screen)
        labelled = [labels.labelled[problem_key(problem)] for problem in sources.problems]
    screen.say("Training the judge")
    num_labelled = sum(bool(one.labels) for one in labelled)
    with screen.counting("Reading the target's states", num_labelled, "answers") as advance:
        return train_judge(labelled, resolve_model("target", settings.target.model), output, advance)


async def _label(
    settings: Settings,
    problems: Sequence[Problem],
    options: LabellingOptions,
    labels: TokenLabelFolder,
    screen: Screen,
) -> None:
    screen.say("Starting the models")
    async with Accelerator.from_settings(settings, strategies=("speculative",)) as accelerator:
        with Grader() as grader:
            labeller = TokenLabeller(accelerator, grader, options.most, options.seed)

            async def label(problem: Problem) -> None:
                labels.append(problem_key(problem), await labeller.label(problem))

            await screen.for_each(problems, options.concurrency, label, "Labelling", "problems")
