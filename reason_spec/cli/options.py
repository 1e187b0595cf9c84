"""Options that several commands share, and how settings and problems are read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reason_spec.accelerator.engine_drafter import with_fitting_strategy
from reason_spec.errors import SettingsError, unknown_name
from reason_spec.settings import Settings, load_settings

NameKind: TypeAlias = Literal["strategy", "verifier", "router", "task"]
PROBLEMS, STRATEGY, MODELS, SAMPLING, OUTPUT = "Problems", "Strategy", "Models", "Sampling", "Output"
"""Panels of the help."""


class Leaf(NamedTuple):
    """One setting: its dotted name, and its declaration."""

    path: str
    field: FieldInfo

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def description(self) -> str:
        return self.field.description or ""


def leaves(section: type[BaseModel] = Settings, path: str = "") -> Iterator[Leaf]:
    """Yield every setting in the order of the tree; a section with a description counts as one setting."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and field.description is None:
            yield from leaves(kind, f"{path}{name}.")
        else:
            yield Leaf(path + name, field)


_LEAVES = {leaf.path: leaf for leaf in leaves()}


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
    """Return a completer of the names of a kind."""

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
    """Complete a model: known names, and paths."""
    from reason_spec.engines.gguf import PACKAGED, PREFIX
    from reason_spec.engines.model_package import packaged_folders

    names = ["embedded", *(PREFIX + name for name in PACKAGED)]
    with suppress(ModuleNotFoundError):
        names += packaged_folders()
    return [*(name for name in names if name.startswith(incomplete)), *complete_path(incomplete)]


def complete_path(incomplete: str) -> list[str]:
    given = Path(incomplete)
    folder, start = (given, "") if incomplete.endswith("/") else (given.parent, given.name)
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    return [f"{item}{'/' if item.is_dir() else ''}" for item in found if item.name.startswith(start)]


# Options -------------------------------------------------------------------------------------


def option(flag: str, text: str, panel: str, *more_flags: str, **more: Any) -> Any:
    """Return an option whose help does not show its default."""
    return typer.Option(flag, *more_flags, help=text, show_default=False, rich_help_panel=panel, **more)


def setting_option(path: str, flag: str, text: str, panel: str, **more: Any) -> Any:
    """Return an option whose default, and ``{values}`` in its text, are read from the settings tree."""
    leaf = _LEAVES[path]
    default = ", ".join(leaf.default) if isinstance(leaf.default, tuple) else leaf.default
    shown = "none" if default in (None, "") else default
    text = f"{text.format(values=leaf.description)} Default: {shown}."
    return option(flag, text, panel, **more)


SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE_OR_QUESTION...",
        help="Files of problems (jsonl, json, also gzip), or questions; - reads a question from stdin.",
        show_default=False,
    ),
]
SamplesOption = Annotated[int, option("--samples", "Answers to each problem. Default: 1.", PROBLEMS, min=1)]
StopSamplesOption = Annotated[
    float | None,
    option(
        "--stop-samples",
        "Draw no more samples of a problem once its vote is decided with this probability, such as 0.95; 1: "
        "once the samples left cannot change it. Default: draw all.",
        PROBLEMS,
        metavar="P",
    ),
]
CompareOption = Annotated[
    str | None,
    option(
        "--compare",
        "Solve every problem with each of these strategies, in shuffled order.",
        STRATEGY,
        metavar="A,B",
        autocompletion=complete_strategies,
    ),
]
ConfigOption = Annotated[Path | None, option("--config", "Settings file, YAML or JSON.", MODELS)]
SetOption = Annotated[
    list[str] | None,
    option(
        "--set",
        "Any other setting by its dotted name, such as strategy.num_draft_tokens=8.",
        MODELS,
        metavar="NAME=VALUE",
        autocompletion=complete_assignment,
    ),
]
OutputOption = Annotated[
    Path | None,
    option(
        "--output",
        "Folder for the results. Default: runs/NAME-HASH; none for questions without --compare.",
        OUTPUT,
    ),
]
FreshOption = Annotated[bool, option("--fresh", "Replace the results in the output folder.", OUTPUT)]
ConcurrencyOption = Annotated[
    int, option("--concurrency", "Problems solved at once. Default: 1.", OUTPUT, min=1)
]
JsonOption = Annotated[bool, option("--json", "Print the result as JSON.", OUTPUT)]
QuietOption = Annotated[bool, option("--quiet", "Print nothing but the result.", OUTPUT, "-q")]


# Settings and problems ------------------------------------------------------------------------


def resolve_settings(
    config: Path | None,
    flags: Mapping[str, Any],
    assignments: Sequence[str] | None = None,
    defaults: dict[str, Any] | None = None,
) -> Settings:
    """Resolve the settings and check the names in them.

    Args:
        flags: values by dotted name; None: not given.
        assignments: texts of the form NAME=VALUE.
        defaults: defaults that differ from those of the settings tree.

    Raises:
        SettingsError: a name is unknown, a value is out of range, or a setting is given twice.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = parse_assignments(assignments or ())
    for name in given.keys() & assigned.keys():
        raise SettingsError(f"{name} is given twice: by --set and by its own flag")
    settings = load_settings(config, {**given, **assigned}, defaults)
    settings = with_fitting_strategy(settings)
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
    given = (name.strip() for name in text.split(",") if name.strip())
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


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values of NAME=VALUE by name; a value is read as YAML, unless its setting takes only text.

    Raises:
        SettingsError: one has another form.
    """
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
        is_empty = value is None and text.strip() not in ("null", "~")
        is_misread = not isinstance(value, str | None) and _takes_text_only(name)
        values[name] = text if is_sentence or is_empty or is_misread else value
    return values


def _takes_text_only(name: str) -> bool:
    """Whether a setting would refuse what YAML reads as a number, a boolean or a date."""
    return name in _LEAVES and _LEAVES[name].field.annotation in (str, str | None, Path, Path | None)
