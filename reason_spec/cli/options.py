"""The options of the commands: flags with the defaults of the settings, and the names they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from reason_spec.cli.settings_table import leaves
from reason_spec.errors import SettingsError, unknown_name
from reason_spec.settings import Settings, current_strategy_name, load_settings

NameKind: TypeAlias = Literal["strategy", "verifier", "router", "task"]

_LEAVES = {leaf.path: leaf for leaf in leaves()}
_PROBLEMS, _STRATEGY, _MODELS, _SAMPLING, _OUTPUT = "Problems", "Strategy", "Models", "Sampling", "Output"
_CACHE, _SERVER = "Cache", "Server"


# Names and their completion ------------------------------------------------------------------


def names_of(kind: NameKind) -> list[str]:
    """Return the names that a flag takes."""
    if kind == "strategy":
        from reason_spec.strategies.factory import strategy_names

        return strategy_names()
    if kind == "verifier":
        from reason_spec.verifiers.base import AUTO, verifier_names

        return [AUTO, *verifier_names()]
    if kind == "router":
        from reason_spec.routers.base import router_names

        return list(router_names())
    from reason_spec.tasks.base import task_names

    return list(task_names())


def complete_name(kind: NameKind) -> Callable[[str], list[str]]:
    """Return what completes a name of that kind in a shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names_of(kind) if name.startswith(incomplete)]

    return complete


def complete_strategies(incomplete: str) -> list[str]:
    """Complete the last of several strategies separated by commas."""
    return _complete_last("strategy", incomplete, ",")


def complete_verifiers(incomplete: str) -> list[str]:
    """Complete the last of several verifiers joined with ``+``."""
    return _complete_last("verifier", incomplete, "+")


def _complete_last(kind: NameKind, incomplete: str, separator: str) -> list[str]:
    before, found, last = incomplete.rpartition(separator)
    chosen = before.split(separator)
    return [before + found + name for name in names_of(kind) if name.startswith(last) and name not in chosen]


def complete_assignment(incomplete: str) -> list[str]:
    """Complete the name in NAME=VALUE."""
    return [f"{path}=" for path in _LEAVES if path.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Complete a model: the names that are no paths, and paths."""
    from reason_spec.engines.gguf import PACKAGED, PREFIX

    names = ["embedded", *(PREFIX + name for name in PACKAGED)]
    return [*(name for name in names if name.startswith(incomplete)), *_complete_path(incomplete)]


def _complete_path(incomplete: str) -> list[str]:
    begun = Path(incomplete)
    folder, start = (begun, "") if incomplete.endswith("/") else (begun.parent, begun.name)
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    return [f"{item}{'/' if item.is_dir() else ''}" for item in found if item.name.startswith(start)]


def complete_source(incomplete: str) -> list[str]:
    """Complete a task in TASK=FILE, and what stands behind it as a path."""
    task, equals, path = incomplete.rpartition("=")
    files = [f"{task}{equals}{item}" for item in _complete_path(path)]
    tasks = [] if equals else [f"{name}=" for name in names_of("task") if name.startswith(incomplete)]
    return [*tasks, *files]


def complete_prices(incomplete: str) -> list[str]:
    """Complete the name of the last of several prices."""
    from reason_spec.evaluation.prices import PRICE_NAMES

    before, comma, last = incomplete.rpartition(",")
    return [
        f"{before}{comma}{name}="
        for name in PRICE_NAMES
        if name.startswith(last) and f"{name}=" not in before
    ]


def complete_tenants(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tenant that the cache's folder knows."""
    from reason_spec.errors import ReasonSpecError
    from reason_spec.suffix.store import tenants_of

    try:
        path = ctx.params.get("path") or load_settings(ctx.params.get("config")).suffix.path
        return [name for name in tenants_of(Path(path)) if name.startswith(incomplete)] if path else []
    except ReasonSpecError:
        return []


# Options -------------------------------------------------------------------------------------


def _option(*flags: str, text: str, panel: str, **options: Any) -> Any:
    return typer.Option(*flags, help=text, show_default=False, rich_help_panel=panel, **options)


def _setting(path: str, *flags: str, text: str, panel: str, **options: Any) -> Any:
    """Return a flag whose default, and ``{values}`` in its text, are read from the settings tree."""
    leaf = _LEAVES[path]
    default = ", ".join(leaf.default) if isinstance(leaf.default, tuple) else leaf.default
    shown = "none" if default in (None, "") else default
    text = f"{text.format(values=leaf.description)} Default: {shown}."
    return _option(*flags, text=text, panel=panel, **options)


SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE_OR_QUESTION...",
        help="Files of problems (jsonl, json, also gzip), or questions; - reads a question from stdin.",
        show_default=False,
    ),
]
TaskSourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TASK=]FILE...",
        help="Files of problems (jsonl, json, also gzip), or data sets: hf:NAME, hf:NAME:CONFIG@SPLIT.",
        show_default=False,
        autocompletion=complete_source,
    ),
]
SampleOption = Annotated[
    bool,
    _option(
        "--sample",
        text="Solve the problems that come with the package: generated ones with the demonstration pair, 24 "
        "of SVAMP and GSM8K with other models.",
        panel=_PROBLEMS,
    ),
]
TaskOption = Annotated[
    str | None,
    _setting(
        "task.name",
        "--task",
        text="What the problems are: {values}.",
        panel=_PROBLEMS,
        autocompletion=complete_name("task"),
    ),
]
LimitOption = Annotated[
    int | None, _option("--limit", text="Solve so many of each file at the most.", panel=_PROBLEMS, min=1)
]
SamplesOption = Annotated[
    int, _option("--samples", text="Answers to each problem. Default: 1.", panel=_PROBLEMS, min=1)
]
GenerateOption = Annotated[
    int | None,
    _option(
        "--generate",
        text="Make so many problems of the demonstration pair's kind instead.",
        panel=_PROBLEMS,
        min=1,
    ),
]
GenerateSeedOption = Annotated[
    int, _option("--generate-seed", text="Which problems are made. Default: 0.", panel=_PROBLEMS, min=0)
]
SkipBadOption = Annotated[bool, _option("--skip-bad", text="Leave unusable lines out.", panel=_PROBLEMS)]
PromptOption = Annotated[
    str | None,
    _setting("task.prompt", "--prompt", text="plain, boxed or examples; {values}.", panel=_PROBLEMS),
]

StrategyOption = Annotated[
    str | None,
    _setting(
        "strategy.name",
        "--strategy",
        text="Who writes the steps: {values}.",
        panel=_STRATEGY,
        autocompletion=complete_name("strategy"),
    ),
]
CompareOption = Annotated[
    str | None,
    _option(
        "--compare",
        text="Solve every problem with each of these strategies, in shuffled order.",
        panel=_STRATEGY,
        metavar="A,B",
        autocompletion=complete_strategies,
    ),
]
VerifierOption = Annotated[
    str | None,
    _setting(
        "verifier.name",
        "--verifier",
        text="What decides whether a drafted step stands, several joined with +: {values}.",
        panel=_STRATEGY,
        autocompletion=complete_verifiers,
    ),
]
RouterOption = Annotated[
    str | None,
    _setting(
        "router.name",
        "--router",
        text="What decides, under arbitrage, which drafted steps the target writes itself: {values}.",
        panel=_STRATEGY,
        autocompletion=complete_name("router"),
    ),
]
DepthOption = Annotated[
    int | None,
    _setting("strategy.depth", "--depth", text="Steps the draft runs ahead, at the most.", panel=_STRATEGY),
]
WidthOption = Annotated[
    int | None,
    _setting(
        "strategy.width",
        "--width",
        text="Drafts tried for each step; under scot of the whole answer.",
        panel=_STRATEGY,
    ),
]

TargetOption = Annotated[
    str | None,
    _setting(
        "target.model",
        "--target",
        text="Large model: a folder, a GGUF file, pypi:smollm2-135m, or an id.",
        panel=_MODELS,
        autocompletion=complete_model,
    ),
]
DraftOption = Annotated[
    str | None,
    _setting(
        "draft.model",
        "--draft",
        text="Small model: a folder, a GGUF file, or an id.",
        panel=_MODELS,
        autocompletion=complete_model,
    ),
]
EngineOption = Annotated[
    Literal["torch", "vllm"] | None,
    _option(
        "--engine",
        text="What runs the models that have no server: torch or vllm. Default: torch.",
        panel=_MODELS,
        metavar="NAME",
    ),
]
TargetUrlOption = Annotated[
    list[str] | None,
    _option(
        "--target-url",
        text="A server of the large model, as http://localhost:8000/v1; may be given again.",
        panel=_MODELS,
        metavar="URL",
    ),
]
DraftUrlOption = Annotated[
    list[str] | None,
    _option("--draft-url", text="A server of the small model.", panel=_MODELS, metavar="URL"),
]
ConfigOption = Annotated[Path | None, _option("--config", text="Settings file, YAML or JSON.", panel=_MODELS)]
SetOption = Annotated[
    list[str] | None,
    _option(
        "--set",
        text="Any other setting by its dotted name, such as strategy.num_draft_tokens=8.",
        panel=_MODELS,
        metavar="NAME=VALUE",
        autocompletion=complete_assignment,
    ),
]

TemperatureOption = Annotated[
    float | None,
    _setting("sampling.temperature", "--temperature", text="0 is greedy.", panel=_SAMPLING),
]
TopKOption = Annotated[
    int | None,
    _setting("sampling.top_k", "--top-k", text="Sample among so many tokens; 0 is off.", panel=_SAMPLING),
]
TopPOption = Annotated[
    float | None,
    _setting("sampling.top_p", "--top-p", text="Sample among this share; 1 is off.", panel=_SAMPLING),
]
SeedOption = Annotated[
    int | None,
    _setting("sampling.seed", "--seed", text="Seed of the samples and of the order.", panel=_SAMPLING),
]
MaxTokensOption = Annotated[
    int | None,
    _setting(
        "sampling.max_tokens", "--max-tokens", text="Tokens of one answer at the most.", panel=_SAMPLING
    ),
]
StopOption = Annotated[
    list[str] | None,
    _setting(
        "sampling.stop",
        "--stop",
        text="End the answer before this text; may be given again.",
        panel=_SAMPLING,
        metavar="TEXT",
    ),
]

CachePathOption = Annotated[
    Path | None,
    _setting("suffix.path", "--path", text="The cache's folder.", panel=_CACHE),
]
TenantOption = Annotated[
    str | None,
    _setting("suffix.tenant", "--tenant", text="Whose texts.", panel=_CACHE, autocompletion=complete_tenants),
]
TenantToEraseOption = Annotated[
    str,
    _option("--tenant", text="Whose texts are removed.", panel=_CACHE, autocompletion=complete_tenants),
]

HostOption = Annotated[
    str | None,
    _setting(
        "server.host",
        "--host",
        text="Address to listen on; one beyond this machine needs keys.",
        panel=_SERVER,
    ),
]
PortOption = Annotated[
    int | None,
    _setting("server.port", "--port", text="Port; 0 is any that is free.", panel=_SERVER, min=0, max=65535),
]
ApiKeysOption = Annotated[
    Path | None,
    _setting("server.api_keys_file", "--api-keys", text="File that 'keys new' wrote.", panel=_SERVER),
]
KeptOption = Annotated[
    Path | None,
    _setting("suffix.path", "--cache", text="Folder that the suffix cache is kept in.", panel=_SERVER),
]

OutputOption = Annotated[
    Path | None,
    _option(
        "--output",
        text="Folder for the results. Default: runs/NAME-HASH for files, none for questions.",
        panel=_OUTPUT,
    ),
]
FreshOption = Annotated[
    bool, _option("--fresh", text="Replace the results in the output folder.", panel=_OUTPUT)
]
DryRunOption = Annotated[
    bool,
    _option(
        "--dry-run",
        text="Print where each model would run and the memory it needs; start nothing.",
        panel=_OUTPUT,
    ),
]
ConcurrencyOption = Annotated[
    int, _option("--concurrency", text="Problems solved at once. Default: 1.", panel=_OUTPUT, min=1)
]
RetriesOption = Annotated[
    int,
    _option(
        "--retries", text="Further tries of an answer whose engine failed. Default: 2.", panel=_OUTPUT, min=0
    ),
]
TimelinesOption = Annotated[
    bool,
    _option(
        "--timelines/--no-timelines",
        text="Keep what happened when in every answer, for pictures of it. Default: kept.",
        panel=_OUTPUT,
    ),
]
PricesOption = Annotated[
    str | None,
    _option(
        "--prices",
        text="What a million tokens cost, such as target_input=0.4,target_output=1.6,draft_output=0.1.",
        panel=_OUTPUT,
        metavar="NAME=NUMBER,...",
        autocompletion=complete_prices,
    ),
]
RayOption = Annotated[
    str | None,
    _option(
        "--ray",
        text="Let workers of a Ray cluster answer: local:N for N here, auto, or the cluster's address.",
        panel=_OUTPUT,
        metavar="ADDRESS",
    ),
]
ShowRejectedOption = Annotated[
    bool, _option("--show-rejected", text="Show refused drafts too.", panel=_OUTPUT)
]
JsonOption = Annotated[bool, _option("--json", text="Print the result as JSON.", panel=_OUTPUT)]
QuietOption = Annotated[bool, _option("--quiet", "-q", text="Print nothing but the result.", panel=_OUTPUT)]


# From flags to settings ----------------------------------------------------------------------

_SETTING_OF_FLAG = {
    "task": "task.name",
    "prompt": "task.prompt",
    "strategy": "strategy.name",
    "depth": "strategy.depth",
    "width": "strategy.width",
    "verifier": "verifier.name",
    "router": "router.name",
    "target": "target.model",
    "draft": "draft.model",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "seed": "sampling.seed",
    "max_tokens": "sampling.max_tokens",
    "stop": "sampling.stop",
}


def settings_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command's flags stand for, by dotted name; None where one was not given.

    Args:
        given: the command's parameters by name, as ``locals()`` has them. Those that are no
            settings are passed over; a model with a URL is a remote one, whatever ``engine`` says.
    """
    flags = {name: given.get(flag) for flag, name in _SETTING_OF_FLAG.items()}
    flags["sampling.stop"] = tuple(flags["sampling.stop"] or ()) or None
    for role in ("target", "draft"):
        urls = given.get(f"{role}_url") or None
        flags[f"{role}.kind"] = given.get("engine") if urls is None else "remote"
        flags[f"{role}.remote.base_urls"] = urls
    return flags


def resolve_settings(
    config: Path | None,
    flags: Mapping[str, Any],
    assignments: Sequence[str] | None = None,
    defaults: dict[str, Any] | None = None,
) -> Settings:
    """Resolve the settings and check the names in them.

    Args:
        flags: values by dotted name; None stands for a flag that was not given.
        assignments: texts of the form NAME=VALUE.
        defaults: of a command whose defaults are not the tree's.

    Raises:
        SettingsError: a name is unknown, a value is out of range, or a setting is given twice.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = _parse_assignments(assignments or ())
    for name in given.keys() & assigned.keys():
        raise SettingsError(f"{name} is given twice: by --set and by its own flag")
    settings = load_settings(config, {**given, **assigned}, defaults)
    check_name("strategy", settings.strategy.name)
    for name in settings.verifier.name.split("+"):
        check_name("verifier", name)
    check_name("router", settings.router.name)
    check_name("task", settings.task.name)
    return settings


def compared_strategies(text: str, at_least: int = 2) -> tuple[str, ...]:
    """Return the strategies named in the value of ``--compare``.

    Raises:
        SettingsError: there are fewer than ``at_least``, or one is unknown.
    """
    given = (current_strategy_name(name.strip()) for name in text.split(",") if name.strip())
    names = tuple(dict.fromkeys(given))
    if len(names) < at_least:
        number = {1: "one strategy", 2: "two strategies"}[at_least]
        raise SettingsError(f"--compare {text!r}: name {number} or more, separated by commas")
    for name in names:
        check_name("strategy", name)
    return names


def check_name(kind: NameKind, name: str) -> None:
    """Refuse an unknown name before anything is loaded.

    Raises:
        SettingsError: there is none of that name.
    """
    known = names_of(kind)
    if name not in known:
        raise unknown_name(kind, name, known)


def _parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    import yaml

    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not (name and equals):
            raise SettingsError(f"--set {assignment!r}: write NAME=VALUE, such as strategy.depth=6")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        # "Be brief: no words" is meant as a text, {a: 1} is not; nothing after the sign is an empty one.
        is_sentence = isinstance(value, dict) and not text.lstrip().startswith("{")
        is_text = is_sentence or (value is None and text.strip() not in ("null", "~"))
        values[name] = text if is_text else value
    return values
