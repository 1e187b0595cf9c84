"""Engines by kind."""

from __future__ import annotations

from pathlib import Path

from reason_spec.engines.base import Engine
from reason_spec.engines.model_files import resolve_model
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings, SuffixSettings


def create_engine(
    name: str,
    settings: EngineSettings,
    suffix: SuffixSettings | None = None,
    texts_of: EngineSettings | None = None,
) -> Engine:
    """Make the engine that its settings describe; ``start`` loads its model or finds its server.

    Args:
        suffix: settings for drafts from earlier texts; None for none.
        texts_of: the model of those texts, if it is another one.

    Raises:
        EngineError: a scripted engine's script cannot be read, the embedded model is missing, or there is
            nothing at the model's path.
        MissingDependencyError: the engine's package is not installed.
    """
    if settings.kind == "scripted":
        from reason_spec.engines.script import load_script
        from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer

        file = load_script(Path(settings.model))
        tokenizer = ScriptedTokenizer(thinking=file.thinking)
        return ScriptedEngine(name, file.script, tokenizer=tokenizer, seconds_per_pass=file.seconds_per_pass)
    # The worker would report it too, but seconds later, once all engines have started.
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
