"""Train the embedded models from random weights; no data set and no network is needed.

    python -m reason_spec.lab.pair.train --model all --out DIR

``DIR/target``, ``DIR/draft`` and ``DIR/judge`` hold the latest models in Hugging Face format.
``DIR/target.checkpoint`` lets a stopped run continue. A run is repeatable on one device.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.errors import ReasonSpecError, ResumeError, SettingsError
from reason_spec.lab.pair.data import FLAW, FLAWED, SOUND, Batch, Phase, make_pool
from reason_spec.lab.pair.optimizer import Muon
from reason_spec.lab.pair.recipe import DEFAULT_TOKENS, Recipe
from reason_spec.pair.model import Role, append_new_layers, deepen, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer

SAVE_SECONDS = 180.0
_FLAW_WEIGHT = 8.0
"""Weight of a token that shows a mistake: there are few of them."""


@dataclass(slots=True)
class TrainingProgress:
    """The counts of a run."""

    pools: int = 0
    steps: int = 0
    tokens: int = 0


class Trainer:
    """The training of one model. ``run`` continues from the checkpoint, if there is one.

    Args:
        compiled: compile the layers, which trains twice as fast and takes a minute to start.
        report: called with a line about each pool.
    """

    def __init__(
        self, recipe: Recipe, out: Path, device: str, *, compiled: bool, report: Callable[[str], None] = print
    ) -> None:
        self.recipe, self.out, self.report = recipe, out, report
        self.device = torch.device(device)
        self.compiled = compiled
        self.tokenizer = build_tokenizer()
        self.progress = TrainingProgress()
        self.checkpoint = out / f"{recipe.role}.checkpoint"
        saved = self._load_checkpoint()
        layers = saved["layers"] if saved else recipe.shape.start_layers
        self.model = new_model(recipe.shape, self.tokenizer, recipe.seed, layers).to(self.device)
        self.flaw_head = nn.Linear(recipe.shape.width, 2, device=self.device)
        nn.init.zeros_(self.flaw_head.weight)
        self._build_optimizers()
        if saved:
            for name, part in self._parts().items():
                part.load_state_dict(saved[name])
            self.progress = TrainingProgress(**saved["progress"])
        self._compile_layers()

    @property
    def share_done(self) -> float:
        return min(1.0, self.progress.tokens / self.recipe.tokens)

    @property
    def phase(self) -> Phase:
        return self.recipe.phase_at(self.share_done)

    @property
    def num_layers(self) -> int:
        return len(self.model.model.layers)

    def run(self, max_pools: int | None = None, save_seconds: float = SAVE_SECONDS) -> None:
        """Train to the end of the recipe, or for ``max_pools`` pools, and write model and checkpoint."""
        started = last_saved = time.monotonic()
        tokens_before = self.progress.tokens
        stop_at = None if max_pools is None else self.progress.pools + max_pools
        while self.share_done < 1.0 and self.progress.pools != stop_at:
            if self.num_layers < self.recipe.layers_at(self.share_done):
                self._grow()
            loss = self.train_pool()
            now = time.monotonic()
            rate = (self.progress.tokens - tokens_before) / max(now - started, 1e-9)
            self.report(
                f"{self.recipe.role} {self.share_done:6.1%}  step {self.progress.steps}  "
                f"layers {self.num_layers}  tokens {self.progress.tokens / 1e6:.2f}M  {rate:.0f} tokens/s  "
                f"loss {loss:.4f}"
            )
            if now - last_saved >= save_seconds:
                self._save()
                last_saved = now
        self._save()

    def train_pool(self) -> float:
        """Train on one pool of batches; return the mean loss in nats a token."""
        phase = self.phase
        if phase == "settling":
            for group in (*self.muon.param_groups, *self.adam.param_groups):
                group["share"] = 1.0
        wording = "draft" if self.recipe.role == "draft" else "target"
        pool = make_pool(
            self.tokenizer,
            self.recipe.seed,
            self.progress.pools,
            self.share_done,
            wording,  # type: ignore[arg-type]
            phase,
        )
        self.model.train()
        losses = []
        for batch in pool:
            losses.append(self._train_batch(batch))
            self.progress.steps += 1
            self.progress.tokens += batch.num_tokens
        self.progress.pools += 1
        return sum(losses) / len(losses)

    def _train_batch(self, batch: Batch) -> float:
        rate = max(self.recipe.rate_at(self.share_done), 1e-3)
        for optimizer, full in ((self.muon, self.recipe.matrix_rate), (self.adam, self.recipe.vector_rate)):
            for group in optimizer.param_groups:
                group["lr"] = full * rate * group["share"]
        inputs, labels = batch.inputs.to(self.device), batch.labels.to(self.device)
        weights = batch.weights.to(self.device)
        hidden = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        learnt = weights > 0
        losses = functional.cross_entropy(
            self.model.lm_head(hidden[learnt]), labels[learnt], reduction="none"
        )
        loss = losses @ weights[learnt] / weights.sum()
        total = loss
        if self.phase != "solving":
            total = loss + self._flaw_loss(hidden, batch.flaws.to(self.device))
        total.backward()
        for optimizer in (self.muon, self.adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _flaw_loss(self, hidden: Tensor, flaws: Tensor) -> Tensor:
        """Return the loss of a temporary head: does a mistake show at this token, and has one shown by then?

        One score for a whole step teaches too little; the place of each mistake is known.
        """
        judged = flaws >= SOUND
        if not judged.any():
            return hidden.new_zeros(())
        logits, flaws = self.flaw_head(hidden[judged]), flaws[judged]
        flawed = functional.binary_cross_entropy_with_logits(logits[:, 0], (flaws >= FLAWED).float())
        # Behind a mistake nothing is expected, so nothing there is another mistake.
        first = flaws != FLAWED
        weights = torch.where(flaws[first] == FLAW, _FLAW_WEIGHT, 1.0)
        shown = functional.binary_cross_entropy_with_logits(
            logits[first, 1], (flaws[first] == FLAW).float(), weights
        )
        return flawed + shown

    # Optimizers and growth -----------------------------------------------------------------------

    def _build_optimizers(self) -> None:
        parameters = dict(self.model.named_parameters())
        self._matrix_names = [n for n, p in parameters.items() if p.ndim == 2 and "embed" not in n]
        vector_names = [n for n in parameters if n not in set(self._matrix_names)]
        vectors = self._groups(vector_names)
        vectors[-1]["params"].extend(self.flaw_head.parameters())
        self.muon = Muon(self._groups(self._matrix_names), lr=self.recipe.matrix_rate)
        self.adam = torch.optim.AdamW(
            vectors, lr=self.recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def _groups(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Put parameters into groups with their shares of the learning rate; new layers come last."""
        shape, parameters = self.recipe.shape, dict(self.model.named_parameters())
        judging = shape.judge_layers > 0 and self.num_layers == shape.start_layers + shape.judge_layers
        layers = range(shape.start_layers, self.num_layers)
        new = ("model.norm.", *(f"model.layers.{index}." for index in layers))
        fast = [n for n in names if not judging or n.startswith(new)]
        slow = [n for n in names if n not in set(fast)]
        return [
            {"params": [parameters[n] for n in slow], "share": self.recipe.trunk_rate},
            {"params": [parameters[n] for n in fast], "share": 1.0},
        ]

    def _grow(self) -> None:
        """Give the model its next depth; old parameters keep the state of their optimizer."""
        old_parameters = dict(self.model.named_parameters())
        old_states = {**self.muon.state, **self.adam.state}
        layers = self.recipe.layers_at(self.share_done)
        if layers < self.recipe.shape.layers:
            torch.manual_seed(self.recipe.seed)
            append_new_layers(self.model, layers)
            renamed: Mapping[str, str] = {name: name for name in old_parameters}
        else:
            renamed = deepen(self.model, layers)
        self._build_optimizers()
        new_parameters = dict(self.model.named_parameters())
        for before, after in renamed.items():
            if state := old_states.get(old_parameters[before]):
                owner = self.muon if after in self._matrix_names else self.adam
                owner.state[new_parameters[after]] = state
        self._compile_layers()

    def _compile_layers(self) -> None:
        if self.compiled:
            for layer in (*self.model.model.layers, self.model.model.norm):
                layer.compile(dynamic=True)

    # Files -----------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, "flaw_head": self.flaw_head, "muon": self.muon, "adam": self.adam}

    def _load_checkpoint(self) -> dict[str, Any] | None:
        if not self.checkpoint.exists():
            return None
        saved: dict[str, Any] = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        if saved["recipe"] | {"tokens": self.recipe.tokens} != asdict(self.recipe):
            raise ResumeError(
                f"{self.checkpoint} was begun with another recipe: {saved['recipe']}. "
                "Use the same options, another --out, or delete it."
            )
        return saved

    def _save(self) -> None:
        """Write the checkpoint, and the model at its full depth in Hugging Face format."""
        self.out.mkdir(parents=True, exist_ok=True)
        content = {name: part.state_dict() for name, part in self._parts().items()}
        content |= {
            "recipe": asdict(self.recipe),
            "layers": self.num_layers,
            "progress": asdict(self.progress),
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(content, partial)
        partial.replace(self.checkpoint)
        model = copy.deepcopy(self.model).eval()
        if self.num_layers < self.recipe.shape.layers:
            deepen(model, self.recipe.shape.layers)
        folder, written = self.out / self.recipe.role, self.out / f"{self.recipe.role}.written"
        save_model(model, self.tokenizer, written)
        folder.mkdir(exist_ok=True)
        for path in written.iterdir():
            path.replace(folder / path.name)
        written.rmdir()


@contextmanager
def sole_training(out: Path, role: Role) -> Iterator[None]:
    """Lock the folder against a second training of the same model, which would mix two checkpoints.

    Raises:
        ResumeError: another process trains this model in this folder.
    """
    from filelock import FileLock, Timeout

    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / f"{role}.lock", timeout=0):
            yield
    except Timeout:
        raise ResumeError(
            f"Another process trains the {role} in {out}. Wait for it, or name another --out."
        ) from None


def pick_device(name: str) -> str:
    """Return the device that ``name`` asks for; ``auto`` takes the fastest available one.

    Raises:
        SettingsError: the device is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, usable in available.items() if usable)
    if not available[name]:
        usable = ", ".join(device for device, usable in available.items() if usable)
        raise SettingsError(f"--device {name} cannot be used here; use auto or one of: {usable}")
    return name


def main(argv: Sequence[str] | None = None) -> None:
    """Train one of the models, or all, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.train", description=main.__doc__)
    defaults = ", ".join(f"{tokens / 1e6:g}M for the {role}" for role, tokens in DEFAULT_TOKENS.items())
    parser.add_argument("--model", choices=[*get_args(Role), "all"], default="all")
    parser.add_argument("--out", type=Path, required=True, help="folder for models and checkpoints")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    parser.add_argument("--tokens", type=int, help=f"training tokens of each model (default: {defaults})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="CPU threads (default: those torch chooses)")
    arguments = parser.parse_args(argv)
    for name in ("tokens", "threads"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be above 0, not {value}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    roles: Sequence[Role] = get_args(Role) if arguments.model == "all" else [arguments.model]
    compiled = any(shutil.which(name) for name in ("g++", "clang++"))
    try:
        device = pick_device(arguments.device)
        for role in roles:
            recipe = Recipe.of(role, arguments.seed, arguments.tokens)
            with sole_training(arguments.out, role):
                Trainer(recipe, arguments.out, device, compiled=compiled).run()
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
