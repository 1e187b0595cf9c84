"""Engines by kind."""

from __future__ import annotations

from pathlib import Path

from reason_spec.engines.base import Engine
from reason_spec.engines.gguf import dequantized, find_gguf
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings, SuffixSettings


def create_engine(
    name: str,
    settings: EngineSettings,
    suffix: SuffixSettings | None = None,
    texts_of: EngineSettings | None = None,
) -> Engine:
    """Make the engine that its settings describe; the model is loaded, or its server found, by ``start``.

    Args:
        suffix: how tokens are drafted from earlier texts, by engines that can; None: they are not.
        texts_of: the model whose texts these are, where it is another one.

    Raises:
        EngineError: a scripted engine's script cannot be read, the embedded model is missing, or there is
            nothing at the model's path.
        MissingDependencyError: the engine's package is not installed.
    """
    if settings.kind == "scripted":
        from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer, load_script

        file = load_script(Path(settings.model))
        tokenizer = ScriptedTokenizer(thinking=file.thinking)
        return ScriptedEngine(name, file.script, tokenizer=tokenizer, seconds_per_pass=file.seconds_per_pass)
    # The engine would say so as well, but only seconds later, when all that starts beside it has started.
    named = Path(settings.model).expanduser()
    if settings.kind != "remote" and settings.model.startswith((".", "/", "~")) and not named.exists():
        raise EngineError(
            f"engine {name!r}: there is no model at {settings.model!r}; name a folder with a config.json, a "
            "GGUF file, or the id of a model"
        )
    settings = settings.model_copy(update={"model": resolve_model(name, settings.model)})
    if settings.kind == "remote":
        from reason_spec.engines.remote.engine import RemoteEngine

        if settings.remote.tokenizer is not None:
            resolved = resolve_model(name, settings.remote.tokenizer)
            remote = settings.remote.model_copy(update={"tokenizer": resolved})
            settings = settings.model_copy(update={"remote": remote})
        return RemoteEngine(name, settings)
    if settings.kind == "vllm":
        from reason_spec.engines.vllm.engine import VllmEngine

        return VllmEngine(name, settings, suffix, texts_of)
    from reason_spec.engines.torch.engine import TorchEngine

    return TorchEngine(name, settings, suffix, texts_of)


def resolve_model(name: str, model: str) -> str:
    """Return the folder or id that the engine called ``draft``, ``target`` or ``judge`` loads.

    A GGUF file is dequantized first, unless it was before (`reason_spec.engines.gguf`).

    Raises:
        EngineError: there is no such embedded model, or a GGUF file cannot be converted.
        MissingDependencyError: a package that reading GGUF takes is not installed.
    """
    if model != "embedded":
        gguf = find_gguf(model)
        if gguf is not None:
            return str(dequantized(gguf))
        return str(Path(model).expanduser()) if model.startswith("~") else model
    from reason_spec.pair import embedded_path

    match name:
        case "draft" | "target" | "judge":
            return str(embedded_path(name))
    raise EngineError(f"there is no embedded model for an engine called {name!r}; name a folder or an id")
