"""Train the embedded models from nothing: no data set and no network is needed.

    python -m reason_spec.lab.pair.train --model all --out DIR --minutes 60

``DIR/target``, ``DIR/draft`` and ``DIR/judge`` hold the latest models in Hugging Face format, renewed
while the training goes on; ``DIR/target.checkpoint`` lets a run that was stopped or killed go on where
it was. With ``--tokens`` in place of ``--minutes`` a run is repeatable on one device.
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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.errors import ReasonSpecError, ResumeError, SettingsError
from reason_spec.lab.pair.data import FLAW, FLAWED, SOUND, Batch, Part, make_pool
from reason_spec.lab.pair.grading import parse_answer
from reason_spec.lab.pair.optimizer import Muon, trapezoid
from reason_spec.pair.decoding import LoadedModel, solve_greedily
from reason_spec.pair.generator import problems
from reason_spec.pair.model import SHAPES, Role, Shape, append_new_layers, deepen, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer
from reason_spec.pair.wording import Wording

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

DEFAULT_TOKENS: Mapping[Role, int] = {"target": 34_000_000, "draft": 12_000_000, "judge": 42_000_000}
"""About what the models in the package were trained on; the draft's is so little that it errs often."""
_FLAW_WEIGHT = 8.0
"""Weight of a token that shows a mistake against one that does not: there are few of them."""
_LONGEST_STEP_SECONDS = 60.0
"""A step that took longer was suspended; the rest of its time does not count as training."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run is made of; a checkpoint goes on only under the recipe it was begun with.

    Exactly one of ``minutes`` (active training time) and ``tokens`` is set; this budget may be
    changed when a run goes on, which stretches what is left. ``judge_at`` is the share of the training
    after which new layers behind the first ones learn to judge, the first ones going on at
    ``trunk_rate`` of the rate: to see that a number is wrong takes layers behind those that say which
    one is right. From ``settle_at`` on all layers are trained on solutions again, most of all, at a rate
    that falls from ``settle_rate`` of the full one; ``grow_at`` is the share after which the model gets
    its full depth.
    """

    role: Role
    shape: Shape
    seed: int = 0
    minutes: float | None = None
    tokens: int | None = None
    judge_at: float = 0.80
    settle_at: float = 0.895
    grow_at: float = 0.99
    trunk_rate: float = 0.1
    settle_rate: float = 0.3
    matrix_rate: float = 0.02
    vector_rate: float = 0.004
    warm_up: float = 0.01
    decay: float = 0.4
    grown_rate: float = 0.1

    @property
    def judges(self) -> bool:
        return self.shape.judge_layers > 0

    def part_at(self, progress: float) -> Part:
        """Return what the model is taught at ``progress`` in 0..1."""
        if not self.judges or progress < self.judge_at:
            return "solving"
        return "judging" if progress < self.settle_at else "settling"

    def layers_at(self, progress: float) -> int:
        """Return the depth of the model at ``progress`` in 0..1."""
        if progress >= self.grow_at:
            return self.shape.layers
        return self.shape.start_layers + self.shape.judge_layers * (progress >= self.judge_at)

    def rate_at(self, progress: float) -> float:
        """Return the share of the full learning rate at ``progress`` in 0..1.

        It falls to ``grown_rate`` before the model grows, and from there to zero: what the shallow
        model has learnt is settled before the many layers, which train slowly, are adjusted. The
        layers that learn to judge are new, and begin at the full rate again.
        """
        if self.shape.start_layers == self.shape.layers:
            return trapezoid(progress, self.warm_up, self.decay)
        if progress >= self.grow_at:
            return self.grown_rate * (1 - progress) / (1 - self.grow_at)
        if self.part_at(progress) == "settling":
            left = (self.grow_at - progress) / (self.grow_at - self.settle_at)
            return self.grown_rate + left * (self.settle_rate - self.grown_rate)
        begin, end = 0.0, self.judge_at if self.judges else self.grow_at
        if progress >= end:
            begin, end = self.judge_at, self.settle_at
        done = (progress - begin) / (end - begin)
        return min(1.0, done / self.warm_up, max((1 - done) / self.decay, self.grown_rate))


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    pools: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a run saves and reports, in seconds of training, and where to."""

    checkpoint_seconds: float = 180.0
    export_seconds: float = 600.0
    evaluation_problems: int = 48


Report: TypeAlias = Callable[[str, float], None]
"""Takes a line about the training and the share that is done."""


def _print_report(line: str, _share_done: float) -> None:
    print(line, flush=True)


@contextmanager
def _live_report(role: Role) -> Iterator[Report]:
    """Show a bar on a terminal; elsewhere, as in a log file, print lines."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console()
    if not console.is_terminal:
        yield _print_report
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(f"{role}: compiling", total=1.0)
        yield lambda line, share_done: bar.update(task, description=line, completed=share_done)


def has_compiler() -> bool:
    """Tell whether torch.compile can build CPU kernels here; they train twice as fast."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


class Trainer:
    """One model on its way through a recipe. ``run`` continues from the checkpoint, if any."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        device: str,
        pace: Pace,
        *,
        compiled: bool,
        report: Report = _print_report,
    ) -> None:
        self.recipe, self.out, self.pace, self.report = recipe, out, pace, report
        self.device = torch.device(device)
        self.compiled = compiled
        self.tokenizer = build_tokenizer()
        self.progress = Progress()
        self.checkpoint = out / f"{recipe.role}.checkpoint"
        saved = self._load_checkpoint()
        layers = saved["layers"] if saved else recipe.shape.start_layers
        self.model = new_model(recipe.shape, self.tokenizer, recipe.seed, layers).to(self.device)
        self.flaw_head = nn.Linear(recipe.shape.width, 2, device=self.device)
        nn.init.zeros_(self.flaw_head.weight)
        self._build_optimizers()
        if saved:
            self.model.load_state_dict(saved["model"])
            self.flaw_head.load_state_dict(saved["flaw_head"])
            self.muon.load_state_dict(saved["muon"])
            self.adam.load_state_dict(saved["adam"])
            self.progress = Progress(**saved["progress"])
        self._compile_layers()

    @property
    def share_done(self) -> float:
        """Share of the training that is done, 0..1."""
        if self.recipe.tokens is not None:
            return min(1.0, self.progress.tokens / self.recipe.tokens)
        assert self.recipe.minutes is not None
        return min(1.0, self.progress.seconds / (60 * self.recipe.minutes))

    def run(self, max_pools: int | None = None) -> None:
        """Train to the end of the recipe, or for ``max_pools`` pools, and write the model."""
        last_saved = last_exported = self.progress.seconds
        stop_at = None if max_pools is None else self.progress.pools + max_pools
        while self.share_done < 1.0 and self.progress.pools != stop_at:
            if self._layers < self.recipe.layers_at(self.share_done):
                self._grow()
            loss = self._train_pool()
            self._report(loss)
            if self.progress.seconds - last_saved >= self.pace.checkpoint_seconds:
                self._save_checkpoint()
                last_saved = self.progress.seconds
            if self.progress.seconds - last_exported >= self.pace.export_seconds:
                self._export_and_evaluate()
                last_exported = self.progress.seconds
        self._save_checkpoint()
        self._export_and_evaluate()

    @property
    def _layers(self) -> int:
        return len(self.model.model.layers)

    @property
    def _part(self) -> Part:
        return self.recipe.part_at(self.share_done)

    def _build_optimizers(self) -> None:
        parameters = dict(self.model.named_parameters())
        self._matrix_names = [n for n, p in parameters.items() if p.ndim == 2 and "embed" not in n]
        self._vector_names = [n for n in parameters if n not in set(self._matrix_names)]
        vectors = self._groups(self._vector_names)
        vectors[-1]["params"].extend(self.flaw_head.parameters())
        self.muon = Muon(self._groups(self._matrix_names), lr=self.recipe.matrix_rate)
        self.adam = torch.optim.AdamW(
            vectors, lr=self.recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def _train_all_alike(self) -> None:
        for optimizer in (self.muon, self.adam):
            for group in optimizer.param_groups:
                group["share"] = 1.0

    def _groups(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Put parameters into groups with their shares of the learning rate; new ones come last."""
        shape, parameters = self.recipe.shape, dict(self.model.named_parameters())
        learning_to_judge = shape.judge_layers > 0 and self._layers == shape.start_layers + shape.judge_layers
        layers = range(shape.start_layers, self._layers)
        new = ("model.norm.", *(f"model.layers.{index}." for index in layers))
        fast = [n for n in names if not learning_to_judge or n.startswith(new)]
        slow = [n for n in names if n not in set(fast)]
        return [
            {"params": [parameters[n] for n in slow], "share": self.recipe.trunk_rate},
            {"params": [parameters[n] for n in fast], "share": 1.0},
        ]

    def _compile_layers(self) -> None:
        if self.compiled:
            for layer in self.model.model.layers:
                layer.compile(dynamic=True)
            self.model.model.norm.compile(dynamic=True)

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
            state = old_states.get(old_parameters[before])
            if state:
                owner = self.muon if after in self._matrix_names else self.adam
                owner.state[new_parameters[after]] = state
        self._compile_layers()

    def _train_pool(self) -> float:
        """Train on one pool of batches; returns the mean loss in nats a token."""
        wording: Wording = "draft" if self.recipe.role == "draft" else "target"
        part = self._part
        if part == "settling":
            self._train_all_alike()
        pool = make_pool(
            self.tokenizer, self.recipe.seed, self.progress.pools, self.share_done, wording, part
        )
        self.model.train()
        losses = []
        for batch in pool:
            started = time.monotonic()
            losses.append(self._train_batch(batch))
            self.progress.steps += 1
            self.progress.tokens += batch.num_tokens
            self.progress.seconds += min(time.monotonic() - started, _LONGEST_STEP_SECONDS)
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
        if self._part != "solving":
            total = loss + self._flaw_loss(hidden, batch.flaws.to(self.device))
        total.backward()
        self.muon.step()
        self.adam.step()
        self.muon.zero_grad(set_to_none=True)
        self.adam.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _flaw_loss(self, hidden: Tensor, flaws: Tensor) -> Tensor:
        """Ask at every token of a judged text whether a mistake shows there, and whether one has by then.

        One score for a whole step is too little to learn from. Where the mistake shows is known, and
        a head that is thrown away afterwards asks for it.
        """
        judged = flaws >= SOUND
        if not judged.any():
            return hidden.new_zeros(())
        logits, flaws = self.flaw_head(hidden[judged]), flaws[judged]
        told = functional.binary_cross_entropy_with_logits(logits[:, 0], (flaws >= FLAWED).float())
        # Behind a mistake nothing is expected any more, so nothing there can be another one.
        first = flaws != FLAWED
        weights = torch.where(flaws[first] == FLAW, _FLAW_WEIGHT, 1.0)
        shown = functional.binary_cross_entropy_with_logits(
            logits[first, 1], (flaws[first] == FLAW).float(), weights
        )
        return told + shown

    def _report(self, loss: float) -> None:
        p = self.progress
        rate = p.tokens / max(p.seconds, 1e-9)
        self.report(
            f"{self.recipe.role} {self.share_done:6.1%}  step {p.steps}  layers {self._layers}  "
            f"tokens {p.tokens / 1e6:.2f}M  {rate:.0f} tokens/s  loss {loss:.4f}",
            self.share_done,
        )

    def _load_checkpoint(self) -> dict[str, Any] | None:
        if not self.checkpoint.exists():
            return None
        saved: dict[str, Any] = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        budget = {"minutes": self.recipe.minutes, "tokens": self.recipe.tokens}
        if saved["recipe"] | budget != asdict(self.recipe):
            raise ResumeError(
                f"{self.checkpoint} was begun with another recipe: {saved['recipe']}. "
                "Use the same options, another --out, or delete it."
            )
        return saved

    def _save_checkpoint(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(
            {
                "recipe": asdict(self.recipe),
                "layers": self._layers,
                "model": self.model.state_dict(),
                "flaw_head": self.flaw_head.state_dict(),
                "muon": self.muon.state_dict(),
                "adam": self.adam.state_dict(),
                "progress": asdict(self.progress),
            },
            partial,
        )
        partial.replace(self.checkpoint)

    def export(self) -> Qwen3ForCausalLM:
        """Write the model at its full depth in Hugging Face format and return a copy of it."""
        model = copy.deepcopy(self.model).eval()
        if self._layers < self.recipe.shape.layers:
            deepen(model, self.recipe.shape.layers)
        folder, partial = self.out / self.recipe.role, self.out / f"{self.recipe.role}.partial"
        save_model(model, self.tokenizer, partial)
        folder.mkdir(exist_ok=True)
        for path in partial.iterdir():
            path.replace(folder / path.name)
        partial.rmdir()
        return model

    def _export_and_evaluate(self) -> None:
        model = self.export()
        count = self.pace.evaluation_problems
        if not count:
            return
        chosen = list(islice(problems("validation", self.recipe.seed), count))
        solutions = solve_greedily(
            LoadedModel(model, self.tokenizer), [problem.question for problem in chosen]
        )
        right = sum(
            parse_answer(text) == problem.answer for text, problem in zip(solutions, chosen, strict=True)
        )
        self.report(f"{self.recipe.role} solves {right} of {count} validation problems", self.share_done)


@contextmanager
def sole_training(out: Path, role: Role) -> Iterator[None]:
    """Hold the folder against a second training of the same model, which would mix two checkpoints.

    Raises:
        ResumeError: another process trains this model in this folder.
    """
    from filelock import FileLock, Timeout

    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / f"{role}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ResumeError(
            f"Another process trains the {role} in {out}. Wait for it, or name another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def pick_device(name: str) -> str:
    """Return the device that ``name`` asks for; ``auto`` takes the best one there is.

    Raises:
        SettingsError: there is no such device here.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if there[device])
    if not there.get(name, False):
        usable = ", ".join(device for device, usable in there.items() if usable)
        raise SettingsError(f"--device {name} cannot be used here; use auto or one of: {usable}")
    return name


def _default_tokens() -> str:
    return ", ".join(f"{tokens / 1e6:g}M for the {role}" for role, tokens in DEFAULT_TOKENS.items())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.train", description=main.__doc__)
    parser.add_argument("--model", choices=[*get_args(Role), "all"], default="all")
    parser.add_argument("--out", type=Path, required=True, help="folder for models and checkpoints")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="training time of each model")
    budget.add_argument(
        "--tokens", type=int, help=f"training tokens of each model (default: {_default_tokens()})"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="CPU threads (default: those torch chooses)")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the layers: twice as fast, a minute to begin (default: where a C++ compiler is)",
    )
    arguments = parser.parse_args(argv)
    for name in ("minutes", "tokens", "threads"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be above 0, not {value}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Train one of the models, or all, one after the other."""
    arguments = _parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    roles: Sequence[Role] = get_args(Role) if arguments.model == "all" else [arguments.model]
    compiled = has_compiler() if arguments.compile is None else arguments.compile
    try:
        device = pick_device(arguments.device)
        for role in roles:
            tokens = arguments.tokens or (DEFAULT_TOKENS[role] if arguments.minutes is None else None)
            recipe = Recipe(role, SHAPES[role], arguments.seed, arguments.minutes, tokens)
            with sole_training(arguments.out, role), _live_report(role) as report:
                Trainer(recipe, arguments.out, device, Pace(), compiled=compiled, report=report).run()
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
