"""Settings of the strategy, the verifier, the router and the load controller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from reason_spec.settings.base import BaseUrls, Names, Section
from reason_spec.settings.engines import EngineSettings
from reason_spec.types import Acceptance, AcceptanceRule, TokenDrafterName

SpeculationMode: TypeAlias = Literal["none", "tokens", "steps"]
"""Speculation mode: by the target alone, with draft tokens, or with draft steps as well."""


def _no_empty_cue(cues: tuple[str, ...]) -> tuple[str, ...]:
    if any(not cue.strip() for cue in cues):
        raise ValueError("a cue is empty")
    return cues


Cues: TypeAlias = Annotated[Names, AfterValidator(_no_empty_cue)]


class CueSettings(Section):
    """Words by which strategy speculative_thinking finds the steps that the target writes.

    Words and numbers are those of the authors' program for Speculative Thinking (arXiv 2504.12329).
    """

    reflection: Cues = ("wait", "alternatively", "hold on", "another")
    """A step with such a word turns back."""
    verification: Cues = ("verify", "think again", "recap", "check")
    """A step with such a word checks earlier steps."""
    conclusion: Cues = ("yes", "yeah", "final answer", "confident")
    """A step with such a word concludes."""
    window: int = Field(default=20, ge=1)
    """Tokens at the start of a drafted step in which words are looked for."""
    takeover_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the target writes of a step with a cue; None: the whole step."""
    remind_after: int = Field(default=15, ge=0)
    """Reflections and checks after which the reminder is inserted; 0: never."""
    reminder: str = Field(default="Let me check whether there are some wrong steps:", min_length=1)
    """Text from which the target continues."""


_THRESHOLDS: Final[dict[AcceptanceRule, float]] = {"exact": 0.0, "cascade": 0.5, "lenient": 0.3, "judge": 0.5}
"""Default thresholds; those of `lenient` and `judge` are the papers' (arXiv 2511.22972, 2501.19309)."""


class StrategySettings(Section):
    """Which model writes the steps, and how far ahead."""

    name: str = Field(
        default="lookahead",
        description="autoregressive, prompt_lookup, token_recycling, speculative, self_speculative, "
        "lookahead, specreason, rsd, atts, hybrid, arbitrage, speculative_thinking, scot, "
        "ssr, oracle",
    )
    planner: bool = Field(
        default=True, description="choose depth and draft tokens for each answer, from measured pass times"
    )
    depth: int = Field(default=4, ge=0, le=64, description="steps that the draft runs ahead")
    width: int = Field(
        default=1,
        ge=1,
        le=8,
        description="drafts of each step; scot: drafts of the answer, 1 means 5; ssr: directions, 1 means 3",
    )
    first_by_target: int = Field(
        default=0,
        ge=0,
        description="first steps written by the target; not under lookahead, scot, ssr and oracle",
    )
    max_corrections: int = Field(
        default=2, ge=0, le=8, description="hybrid: tokens that the target corrects in a drafted step"
    )
    step_max_tokens: int = Field(default=512, ge=1, description="a longer step is cut in two")
    token_drafter: Literal["auto", "none", "prompt_lookup", "recycling", "stand"] = Field(
        default="auto",
        description="source of draft tokens beside a draft model's; recycling, stand: also what earlier "
        "passes predicted after the same tokens, the last prediction or the mean (vllm: prompt_lookup); "
        "auto: recycling under token_recycling, and where an answer is one request beside a draft model, as "
        "under speculative; else prompt_lookup",
    )
    draft_tree: Literal["greedy", "chain", "eagle2", "sequoia"] = Field(
        default="greedy",
        description="torch: nodes of a draft tree: the likeliest paths, the likeliest chain, a beam (of a "
        "head, too), or one shape by acceptance rates",
    )
    refusal_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="torch: a head or `self` drafts until a refusal is likelier than this (SpecDec++, 0.3 "
        "there); null: as long as a token is expected to save time",
    )
    num_draft_tokens: int = Field(
        default=24,
        ge=1,
        le=128,
        description="draft tokens of a branch in one pass; torch: up to three times as many where hints or "
        "the suffix cache are likely to be right",
    )
    acceptance: AcceptanceRule = Field(
        default="exact",
        description="draft tokens to accept: exact: the target's own choices; cascade, lenient, judge: "
        "others of a model, too (torch; loss class relaxed)",
    )
    acceptance_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="cascade: accepted from (1 - threshold) of the highest probability on, 0 is exact; "
        "lenient: accepted from this entropy / log(vocabulary) on, 1 is exact; judge: accepted above "
        "this probability of the judge, 1 is exact; null: cascade 0.5, lenient 0.3, judge 0.5",
    )
    acceptance_window: int = Field(
        default=6, ge=0, le=64, description="lenient: right draft tokens that must follow an accepted one"
    )
    share_samples: bool = Field(
        default=False,
        description="torch: samples of one problem (`eval --samples`) draft for each other",
    )
    use_hint: bool = Field(default=True, description="use the drafted step as draft tokens of the target")
    use_redraft: bool = Field(
        default=True, description="after a rejected token, the draft model drafts the rest of the step again"
    )
    cues: CueSettings = Field(default=CueSettings(), description="speculative_thinking: cue words and limits")
    end_of_thinking: str = Field(
        default="</think>",
        min_length=1,
        description="scot: the target writes the answer after the step with this text, or the last step",
    )
    directions: Names = Field(
        default=(
            "Let us work step by step.",
            "Let us list what is given and what is asked.",
            "Let us write an equation.",
            "Let us work backwards from what is asked.",
            "Let us draw up a table.",
        ),
        min_length=1,
        description="ssr: openings of an answer; the target picks `width` of them",
    )
    judge_whole: bool = Field(default=False, description="scot: judge a draft at its end, not step by step")

    def token_drafter_or(self, default: TokenDrafterName) -> TokenDrafterName:
        """Return the chosen token-level drafter; the default of a strategy for ``auto``."""
        return default if self.token_drafter == "auto" else self.token_drafter

    @property
    def accepts(self) -> Acceptance:
        """The rule of acceptance with its numbers."""
        threshold = (
            _THRESHOLDS[self.acceptance] if self.acceptance_threshold is None else self.acceptance_threshold
        )
        return Acceptance(self.acceptance, threshold, self.acceptance_window)


class VerifierSettings(Section):
    """Settings of the verifier of drafted steps."""

    name: str = Field(
        default="auto",
        description="auto, semantic, numbers, embedding, exact, likelihood, confidence, conformal, "
        "utility, judge, reward",
    )
    threshold: float | None = Field(default=None, ge=-1, le=1, description="null: the verifier's default")
    thresholds: dict[str, float] = Field(
        default={}, description="thresholds by verifier, for several joined with +"
    )
    deadline: float = Field(default=5.0, gt=0, description="seconds for one verdict; then it is `unknown`")
    semantic_model: str | None = Field(
        default=None, description="semantic: folder of `verifier train`; null: the packaged encoder"
    )
    embedding_model: str | None = Field(default=None, description="null: all-MiniLM-L6-v2 of its package")
    reward_model: str | None = Field(
        default=None,
        description="reward: folder or id of a classifier, or its name at reward_url; null: the "
        "demonstration pair's head, or the servers' only model",
    )
    reward_step_token: str | None = Field(
        default=None,
        min_length=1,
        description="reward: token after each step whose output is the reward, such as `<extra_0>`; null: "
        "one reward for the whole text",
    )
    reward_trust_remote_code: bool = Field(
        default=False, description="reward: run code that comes with reward_model"
    )
    reward_url: BaseUrls = Field(
        default=(),
        description="reward: servers of the model (`vllm serve MODEL --runner pooling`), such as "
        "http://localhost:8000/v1",
    )
    reward_api_key_variable: str | None = Field(
        default=None, description="reward: environment variable with the key for reward_url"
    )
    utility_score: Literal["expected", "greedy"] = Field(
        default="expected", description="utility: expected or most likely digit"
    )
    judge: EngineSettings | None = Field(
        default=None,
        description="utility, judge: the judge model; null: the demonstration pair's, or the target",
    )

    @model_validator(mode="after")
    def _reward_server_has_its_settings(self) -> VerifierSettings:
        if self.reward_url and self.reward_trust_remote_code:
            raise ValueError(
                "reward_url is given, so the model and its code run there: leave out reward_trust_remote_code"
            )
        if self.reward_api_key_variable is not None and not self.reward_url:
            raise ValueError("reward_api_key_variable is given, and no reward_url that the key is for")
        return self


class RouterSettings(Section):
    """Which drafted steps strategy arbitrage escalates to the target."""

    name: str = Field(default="auto", description="auto, learned, threshold, glimp, random, draft, target")
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="steps with a higher score are written by the target; null: the router's default",
    )
    file: Path | None = Field(
        default=None, description="learned: file of `router train`; null: the demonstration pair's"
    )
    any_pair: bool = Field(
        default=False, description="learned: accept a router that was trained on other models"
    )
    seed: int = Field(default=0, description="random: seed")


def _on_or_off(value: Any) -> Any:
    """Return the words that YAML 1.1 reads as booleans."""
    return ("off", "on")[value] if isinstance(value, bool) else value


_OnOrOff: TypeAlias = Annotated[Literal["on", "off"], BeforeValidator(_on_or_off)]


class LoadControlSettings(Section):
    """How much is speculated under load."""

    use: _OnOrOff = Field(default="on", description="off: speculate as the strategy says, at any load")
    at_most: SpeculationMode = Field(
        default="steps",
        description="steps: draft steps and draft tokens; tokens: draft tokens; none: no speculation",
    )
