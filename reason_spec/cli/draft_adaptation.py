"""What ``draft adapt`` does and prints."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reason_spec.cli.screen import Screen
from reason_spec.engines.machine import pick_device
from reason_spec.engines.pruned import PrunedDraft, find_pruned
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.accelerator.answer_store import AnswerStore
    from reason_spec.lab.drafts.adapting import AdaptationRound, DraftAdapter

_LOWEST_PRIORITY = 19
_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """Options of ``draft adapt``; ``seconds`` is the training time of one version."""

    answers: Path
    seconds: float
    device: str
    threads: int
    once: bool


def adapt_draft(folder: Path, options: AdaptOptions, screen: Screen) -> None:
    """Train a draft on new answers until it is interrupted; with ``once`` until none are left."""
    from reason_spec.evaluation.records import lock_folder

    draft = find_pruned(str(folder))
    if draft is None:
        raise SettingsError(f"{folder}: holds no draft; name a folder that 'draft train' made")
    store = _open_store(draft, options.answers)
    # Two processes would replace each other's versions; training the draft anew takes this lock, too.
    with lock_folder(folder, "DRAFT"):
        _adapt(draft, store, options, screen)


def _adapt(draft: PrunedDraft, store: AnswerStore, options: AdaptOptions, screen: Screen) -> None:
    os.nice(_LOWEST_PRIORITY)
    import torch

    from reason_spec.lab.drafts.adapting import DraftAdapter

    torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    with screen.status("Loading the target's layers"):
        adapter = DraftAdapter(draft, store, device, options.seconds)
    waits_for = ""
    while True:
        chosen = adapter.next_round()
        if not isinstance(chosen, str):
            _run_round(adapter, chosen, options.seconds, screen)
            continue
        if chosen != waits_for:
            screen.say(f"Waiting: {chosen}")
            waits_for = chosen
        if options.once:
            return
        time.sleep(_POLL_SECONDS)


def _open_store(draft: PrunedDraft, folder: Path) -> AnswerStore:
    from reason_spec.accelerator.answer_store import AnswerStore
    from reason_spec.engines.model_files import resolve_model
    from reason_spec.engines.tokenizer import load_tokenizer
    from reason_spec.engines.weights import identify_model
    from reason_spec.settings import EngineSettings
    from reason_spec.suffix.tenant_file import StoreKey

    base, revision = draft.config.base, draft.config.revision
    identity = identify_model("target", EngineSettings(model=base, revision=revision))
    tokenizer = load_tokenizer(resolve_model("target", base), revision)
    return AnswerStore.open(folder, StoreKey(identity, tokenizer.tokenizer_id))


def _run_round(adapter: DraftAdapter, chosen: AdaptationRound, seconds: float, screen: Screen) -> None:
    from reason_spec.lab.drafts.adapting import RoundResult

    rate = chosen.acceptance_rate
    served = "" if rate is None else f", of whose draft tokens {rate:.0%} were accepted"
    screen.say(
        f"Training version {chosen.start.number} on {len(chosen.trained)} answers ({chosen.num_new} new ones"
        f"{served}), {len(chosen.held_out)} held out"
    )
    started = time.monotonic()
    with screen.bar("s") as bar:
        task = bar.add_task("Training", total=round(seconds))
        for found in adapter.run(chosen):
            bar.update(task, completed=round(time.monotonic() - started))
            if isinstance(found, RoundResult):
                written = f"version {found.version.number} is written" if found.version else "it is dropped"
                screen.say(f"  tokens a pass {found.before:.2f} -> {found.after:.2f}; {written}")
