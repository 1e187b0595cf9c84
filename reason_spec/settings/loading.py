"""Resolve the settings from defaults, a file, the environment and flags, in rising precedence."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource

from reason_spec.errors import SettingsError, did_you_mean
from reason_spec.settings.server import API_KEY_VARIABLE
from reason_spec.settings.tree import Settings

ENV_PREFIX = "REASON_SPEC_"


def load_settings(
    file: Path | None = None,
    flags: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
) -> Settings:
    """Resolve the settings from a file, the environment and flags, in rising precedence.

    Args:
        file: YAML or JSON, holding any part of the tree.
        flags: nested values, or dotted names such as ``{"strategy.depth": 6}``; None is the value null.
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


# Only the types of its fields matter: pydantic-settings parses nested and JSON values by them.
_Environment: type[BaseSettings] = create_model(
    "_Environment",
    __base__=BaseSettings,
    **{name: (dict[str, Any], {}) for name in Settings.model_fields},  # type: ignore[call-overload]
)


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
        return {section: _with_json(values) for section, values in source().items()}
    except Exception as error:
        raise SettingsError(f"a {ENV_PREFIX}... environment variable cannot be read: {error}") from None


def _with_json(value: Any) -> Any:
    """Return values with lists, objects and null read from their JSON, which pydantic leaves as texts."""
    if isinstance(value, dict):
        return {name: _with_json(part) for name, part in value.items()}
    if isinstance(value, str) and (value == "null" or value.lstrip().startswith(("[", "{"))):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _nest(flags: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        branch = tree
        *path, leaf = name.split(".")
        for depth, part in enumerate(path, start=1):
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                section = ".".join(path[:depth])
                raise SettingsError(
                    f"{section} = {branch!r} and {name} = {value!r} exclude each other; leave one of them out"
                )
        _merge(branch, {leaf: value})
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
        if part not in model.model_fields:
            break
        annotation = model.model_fields[part].annotation
        # `verifier.judge` is a section or null.
        sections = [
            kind
            for kind in (annotation, *get_args(annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if not sections:
            break
        model = sections[0]
    return list(model.model_fields)
