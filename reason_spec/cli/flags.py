"""Flags that several commands share: those of settings, and those that choose problems."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from reason_spec.cli.options import (
    MODELS,
    PROBLEMS,
    SAMPLING,
    STRATEGY,
    ConfigOption,
    SetOption,
    complete_model,
    complete_name,
    complete_verifiers,
    option,
    resolve_settings,
    setting_option,
)
from reason_spec.errors import SettingsError
from reason_spec.settings import Settings

if TYPE_CHECKING:
    from reason_spec.evaluation.sources import Sources

PROBLEM_FLAGS = ("task", "sample", "limit", "skip_bad")
GENERATE_FLAGS = ("generate", "generate_seed")
STRATEGY_FLAGS = ("strategy", "verifier", "router", "depth", "width", "acceptance", "early_exit")
SERVER_FLAGS = ("target", "draft", "head", "target_url", "draft_url")
MODEL_FLAGS = (*SERVER_FLAGS, "engine")
THINKING_FLAGS = ("thinking_token_budget", "max_thinking_steps", "reasoning_effort")
SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "seed", "max_tokens", *THINKING_FLAGS, "stop")


class _Flag(NamedTuple):
    """A flag, its setting, and its annotation for Typer."""

    name: str
    setting: str
    annotation: Any


def _flag(name: str, path: str, text: str, panel: str, kind: Any = str, **more: Any) -> _Flag:
    shown = setting_option(path, f"--{name.replace('_', '-')}", text, panel, **more)
    return _Flag(name, path, Annotated[kind | None, shown])


_DECLARED = (
    _flag(
        "task",
        "task.name",
        "Kind of the problems: {values}.",
        PROBLEMS,
        autocompletion=complete_name("task"),
    ),
    _flag("prompt", "task.prompt", "plain, boxed or examples; {values}.", PROBLEMS),
    _flag(
        "strategy",
        "strategy.name",
        "Strategy of the answer: {values}.",
        STRATEGY,
        autocompletion=complete_name("strategy"),
    ),
    _flag(
        "verifier",
        "verifier.name",
        "Decides which drafted steps are accepted; join several with +: {values}.",
        STRATEGY,
        autocompletion=complete_verifiers,
    ),
    _flag(
        "router",
        "router.name",
        "Strategy arbitrage: chooses the steps that the target writes: {values}.",
        STRATEGY,
        autocompletion=complete_name("router"),
    ),
    _flag("depth", "strategy.depth", "Most steps that the draft runs ahead.", STRATEGY, int),
    _flag(
        "width",
        "strategy.width",
        "Drafts of each step; under scot of the whole answer.",
        STRATEGY,
        int,
    ),
    _flag(
        "acceptance",
        "strategy.acceptance",
        "Accepted draft tokens: exact; or cascade, lenient, judge, for loss class relaxed.",
        STRATEGY,
    ),
    _flag(
        "early_exit",
        "exit.rule",
        "Ends the thinking early, for loss class shortened: policy, probes, deer, dynasor.",
        STRATEGY,
    ),
    _flag(
        "target",
        "target.model",
        "Large model: a folder, a GGUF file, models:smollm2-gsm8k, or a Hugging Face id.",
        MODELS,
        autocompletion=complete_model,
    ),
    _flag(
        "draft",
        "draft.model",
        "Small model: a folder, a GGUF file, or a Hugging Face id.",
        MODELS,
        autocompletion=complete_model,
    ),
    _flag(
        "head",
        "target.drafter",
        "Drafts tokens inside the target, beside a draft model for steps: folder of a head, self, or on vLLM "
        "a draft model.",
        MODELS,
        autocompletion=complete_model,
    ),
    _flag("temperature", "sampling.temperature", "Temperature; 0 is greedy.", SAMPLING, float),
    _flag("top_k", "sampling.top_k", "Sample from the k most likely tokens; 0 is off.", SAMPLING, int),
    _flag(
        "top_p",
        "sampling.top_p",
        "Sample from the most likely tokens of this total probability; 1 is off.",
        SAMPLING,
        float,
    ),
    _flag("seed", "sampling.seed", "Seed of samples and of the order of strategies.", SAMPLING, int),
    _flag("max_tokens", "sampling.max_tokens", "Maximum number of tokens of one answer.", SAMPLING, int),
    _flag(
        "thinking_token_budget",
        "thinking.token_budget",
        "Maximum number of tokens of the thinking; the answer follows.",
        SAMPLING,
        int,
    ),
    _flag(
        "max_thinking_steps",
        "thinking.max_steps",
        "Maximum number of steps of the thinking; the answer follows.",
        SAMPLING,
        int,
    ),
    _flag(
        "reasoning_effort",
        "thinking.effort",
        "Effort of the thinking, for the chat template or as a token budget; none: no thinking.",
        SAMPLING,
    ),
    _flag(
        "stop",
        "sampling.stop",
        "End the answer before this text; may be repeated.",
        SAMPLING,
        list[str],
        metavar="TEXT",
    ),
)
_FLAGS = {flag.name: flag for flag in _DECLARED}


def _url_option(role: str, text: str) -> Any:
    return Annotated[list[str] | None, option(f"--{role}-url", text, MODELS, metavar="URL")]


_OTHERS: dict[str, tuple[Any, Any]] = {
    "target_url": (
        _url_option(
            "target", "A server of the large model, such as http://localhost:8000/v1; may be repeated."
        ),
        None,
    ),
    "draft_url": (_url_option("draft", "A server of the small model; may be repeated."), None),
    "engine": (
        Annotated[
            Literal["torch", "vllm"] | None,
            option(
                "--engine",
                "Engine of the models without a server: torch or vllm. Default: torch.",
                MODELS,
                metavar="NAME",
            ),
        ],
        None,
    ),
    "config": (ConfigOption, None),
    "assignments": (SetOption, None),
    "sample": (
        Annotated[
            bool,
            option(
                "--sample",
                "Solve the problems that come with the package: generated ones with the demonstration pair, "
                "24 of SVAMP and GSM8K with other models.",
                PROBLEMS,
            ),
        ],
        False,
    ),
    "limit": (
        Annotated[
            int | None, option("--limit", "Solve at most this many problems of each file.", PROBLEMS, min=1)
        ],
        None,
    ),
    "skip_bad": (
        Annotated[bool, option("--skip-bad", "Skip unusable lines.", PROBLEMS)],
        False,
    ),
    "generate": (
        Annotated[
            int | None,
            option(
                "--generate",
                "Generate this many problems of the demonstration pair's kind instead.",
                PROBLEMS,
                min=1,
            ),
        ],
        None,
    ),
    "generate_seed": (
        Annotated[
            int, option("--generate-seed", "Seed of the generated problems. Default: 0.", PROBLEMS, min=0)
        ],
        0,
    ),
}
"""Annotations and defaults."""


def _declaration(name: str) -> tuple[Any, Any]:
    return (_FLAGS[name].annotation, None) if name in _FLAGS else _OTHERS[name]


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of a command's shared flags by parameter; None where a setting was not given."""

    given: Mapping[str, Any]

    def refuse_strategy_beside(self, compare: str | None) -> None:
        """Refuse ``--strategy`` together with ``--compare``.

        Raises:
            SettingsError: both are given.
        """
        if self.given["strategy"] is not None and compare is not None:
            raise SettingsError("--strategy and --compare exclude each other; --compare names all strategies")

    def problems(
        self,
        settings: Settings,
        sources: Sequence[str] | None,
        read: Callable[..., Sources],
        generate: Callable[[int, int], Sources] | None = None,
    ) -> Sources:
        """Return generated problems where they are wanted, else those that ``read`` finds.

        Args:
            generate: called with the number of problems and their seed.

        Raises:
            SettingsError: generated problems are wanted beside others.
            DataError: as ``read`` does.
        """
        from reason_spec.evaluation.sources import sample_of

        given = self.given
        if generate is not None and given["generate"] is not None:
            if sources or given["sample"]:
                raise SettingsError("--generate makes all problems itself: leave out files and --sample")
            limit = given["limit"] or given["generate"]
            return generate(min(given["generate"], limit), given["generate_seed"])
        return read(
            sources or [],
            settings.task.name,
            sample=sample_of(settings, given["sample"]),
            limit=given["limit"],
            skip_bad=given["skip_bad"],
        )

    def resolve(
        self, more: Mapping[str, Any] | None = None, defaults: dict[str, Any] | None = None
    ) -> Settings:
        """Resolve the settings of the command.

        Args:
            more: further values by dotted name; they beat those of the flags.
            defaults: defaults that differ from those of the settings tree.

        Raises:
            SettingsError: as `resolve_settings` does.
        """
        flags = {flag.setting: self.given.get(name) for name, flag in _FLAGS.items()}
        flags["sampling.stop"] = tuple(flags["sampling.stop"] or ()) or None
        for role in ("target", "draft"):
            # A model with a URL is remote, with any --engine.
            urls = self.given.get(f"{role}_url") or None
            flags[f"{role}.kind"] = self.given.get("engine") if urls is None else "remote"
            flags[f"{role}.remote.base_urls"] = urls
        config, assignments = self.given.get("config"), self.given.get("assignments")
        return resolve_settings(config, {**flags, **(more or {})}, assignments, defaults)


def takes_flags(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command shared flags, ``--config`` and ``--set``.

    The command has a parameter ``flags: Flags``, which the flags replace on the command line.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        flags = (*names, "config", "assignments")
        for own in inspect.signature(command, eval_str=True).parameters.values():
            shown = {own.name: (own.annotation, own.default)}
            if own.name == "flags":
                shown = {name: _declaration(name) for name in flags}
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                for name, (kind, default) in shown.items()
            ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(flags=Flags({name: given.pop(name) for name in flags}), **given)

        # Typer reads both.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
