"""Loads the model and its scheduler in the worker process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from reason_spec.engines.constraints import BackgroundCompiler, ConstraintCompiler
from reason_spec.engines.text_updates import apply_update
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.drafters import load_drafter
from reason_spec.engines.torch.judge import attach_judge
from reason_spec.engines.torch.load import load_model, replace_layers
from reason_spec.engines.torch.model import Model, measure_single_token_pass
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.worker.loop import Loaded, open_earlier_texts
from reason_spec.engines.worker.messages import Ready, Start
from reason_spec.settings import EngineSettings


def load(start: Start, num_threads: int, report: Callable[[str], None]) -> Loaded:
    """Load the model.

    Raises:
        EngineError: it cannot be loaded or served.
    """
    settings = start.settings
    torch.set_num_threads(num_threads)
    torch.set_num_interop_threads(1)
    tokenizer = load_tokenizer(settings.model, settings.revision)
    report("loading the weights")
    model = load_model(settings)
    if start.layers is not None:
        replace_layers(model, settings, start.layers)
    texts = open_earlier_texts(start, tokenizer.tokenizer_id, report)
    # Now, as later requests would wait for it.
    constraints = BackgroundCompiler(lambda: ConstraintCompiler(tokenizer, model.vocab_size))
    constraints.prepare()
    drafter = load_drafter(settings, model, report)
    judge = None if settings.torch.judge is None else attach_judge(model, Path(settings.torch.judge))
    report("timing passes")
    scheduler = Scheduler(
        model,
        tokenizer,
        num_slots=settings.cache_tokens,
        max_running=settings.max_running,
        earlier=texts,
        constraints=constraints,
        draft_model=drafter,
        judge=judge,
    )
    ready = Ready(
        max_context=model.max_context,
        dtype=str(model.dtype).removeprefix("torch."),
        seconds_per_token_pass=measure_single_token_pass(model),
    )
    update_text = None if texts is None else partial(apply_update, texts)
    return Loaded(ready, scheduler, update_text, partial(_load_layers, model, settings, scheduler))


def _load_layers(model: Model, settings: EngineSettings, scheduler: Scheduler, file: Path) -> None:
    replace_layers(model, settings, file)
    scheduler.forget_prefixes()
