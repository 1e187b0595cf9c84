"""The models that verifiers ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reason_spec.engines.base import Engine
from reason_spec.settings import EngineSettings, Settings
from reason_spec.verifiers.base import Models

if TYPE_CHECKING:
    from reason_spec.verifiers.reward import Reward


def models_to_ask(
    settings: Settings, target: Engine | None = None, cores: tuple[int, ...] | None = None
) -> Models:
    """Return the models that verifiers may ask, and the wording of the questions.

    With the embedded target these are the embedded judge and reward head. With another target it is the
    judge of the settings, or else the target.

    Args:
        cores: cores of a judge of its own; None: as its settings say.
    """
    from reason_spec.engines.factory import create_engine
    from reason_spec.pair import wording
    from reason_spec.verifiers.asking import Questions

    boundary = settings.boundary.to_boundary()
    judge = judge_settings(settings)
    if judge is None:
        return Models(target, boundary=boundary)
    if judge.cores is None:
        # It works while the target waits for its verdict.
        judge = judge.model_copy(update={"cores": cores})
    trained = Questions(wording.SCORE_QUESTION, "", wording.JUDGE_QUESTION, "")
    return Models(
        target,
        make_judge=lambda: create_engine("judge", judge),
        questions=trained if judge.model == "embedded" else None,
        load_reward=_load_embedded_reward if _is_embedded(settings.target) else None,
        boundary=boundary,
    )


def judge_settings(settings: Settings) -> EngineSettings | None:
    """Return the model that verifiers ``utility`` and ``judge`` ask; None: the target itself."""
    target = settings.target
    if settings.verifier.judge is not None or not _is_embedded(target):
        return settings.verifier.judge
    return EngineSettings(kind=target.kind, dtype=target.dtype, device=target.device)


def _is_embedded(target: EngineSettings) -> bool:
    return target.model == "embedded" and target.kind in ("torch", "vllm")


def _load_embedded_reward() -> Reward:
    from reason_spec.pair.reward import load_embedded_reward
    from reason_spec.verifiers.batching import no_progress_bars

    with no_progress_bars():
        return load_embedded_reward()
