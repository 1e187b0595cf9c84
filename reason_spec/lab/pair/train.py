"""Train the embedded models from random weights; no data set and no network is needed.

    python -m reason_spec.lab.pair.train --model all --out DIR

``DIR/target``, ``DIR/draft`` and ``DIR/judge`` get the models in Hugging Face format. A run is repeatable on
one device, and takes up to three hours on a CPU core.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.lab.pair.data import FLAW, FLAWED, SOUND, Batch, Phase, make_pool
from reason_spec.lab.pair.optimizer import Muon
from reason_spec.lab.pair.recipe import DEFAULT_TOKENS, Recipe
from reason_spec.pair.model import Role, append_new_layers, deepen, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer
from reason_spec.pair.wording import Wording

_FLAW_WEIGHT = 8.0
"""Weight of a token that shows a mistake: there are few of them."""


class Trainer:
    """The training of one model.

    Args:
        compiled: compile the layers, which trains twice as fast and takes a minute to start.
        report: called with a line about each pool.
    """

    def __init__(
        self, recipe: Recipe, device: str, *, compiled: bool, report: Callable[[str], None] = print
    ) -> None:
        self.recipe, self.report = recipe, report
        self.device = torch.device(device)
        self.compiled = compiled
        self.tokenizer = build_tokenizer()
        self.num_pools = self.num_steps = self.num_tokens = 0
        self.model = new_model(recipe.shape, self.tokenizer, recipe.seed).to(self.device)
        self.flaw_head = nn.Linear(recipe.shape.width, 2, device=self.device)
        nn.init.zeros_(self.flaw_head.weight)
        self._build_optimizers()
        self._compile_layers()

    @property
    def share_done(self) -> float:
        return min(1.0, self.num_tokens / self.recipe.tokens)

    @property
    def phase(self) -> Phase:
        return self.recipe.phase_at(self.share_done)

    @property
    def num_layers(self) -> int:
        return len(self.model.model.layers)

    def run(self) -> None:
        """Train to the end of the recipe."""
        started = time.monotonic()
        while self.share_done < 1.0:
            loss = self.train_pool()
            rate = self.num_tokens / max(time.monotonic() - started, 1e-9)
            self.report(
                f"{self.recipe.role} {self.share_done:6.1%}  step {self.num_steps}  "
                f"layers {self.num_layers}  tokens {self.num_tokens / 1e6:.2f}M  {rate:.0f} tokens/s  "
                f"loss {loss:.4f}"
            )

    def train_pool(self) -> float:
        """Train on one pool of batches; return the mean loss in nats a token.

        The model grows first where it is time.
        """
        if self.num_layers < self.recipe.layers_at(self.share_done):
            self._grow()
        phase = self.phase
        if phase == "settling":
            for group in (*self.muon.param_groups, *self.adam.param_groups):
                group["share"] = 1.0
        wording: Wording = "draft" if self.recipe.role == "draft" else "target"
        pool = make_pool(self.tokenizer, self.recipe.seed, self.num_pools, self.share_done, wording, phase)
        self.model.train()
        losses = []
        for batch in pool:
            losses.append(self._train_batch(batch))
            self.num_steps += 1
            self.num_tokens += batch.num_tokens
        self.num_pools += 1
        return sum(losses) / len(losses)

    def _train_batch(self, batch: Batch) -> float:
        rate = max(self.recipe.rate_at(self.share_done), 1e-3)
        for optimizer, full in ((self.muon, self.recipe.matrix_rate), (self.adam, self.recipe.vector_rate)):
            for group in optimizer.param_groups:
                group["lr"] = full * rate * group["share"]
        inputs, labels = batch.inputs.to(self.device), batch.labels.to(self.device)
        weights = batch.weights.to(self.device)
        hidden = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        in_loss = weights > 0
        losses = functional.cross_entropy(
            self.model.lm_head(hidden[in_loss]), labels[in_loss], reduction="none"
        )
        loss = losses @ weights[in_loss] / weights.sum()
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
        # After a mistake nothing is expected, so nothing there is another mistake.
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

    def save(self, folder: Path) -> None:
        """Write the model, at its full depth, in Hugging Face format."""
        if self.num_layers < self.recipe.shape.layers:
            deepen(self.model, self.recipe.shape.layers)
        save_model(self.model.eval(), self.tokenizer, folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Train one of the models, or all, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.train", description=main.__doc__)
    defaults = ", ".join(f"{tokens / 1e6:g}M for the {role}" for role, tokens in DEFAULT_TOKENS.items())
    parser.add_argument("--model", choices=[*get_args(Role), "all"], default="all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu")
    parser.add_argument("--tokens", type=int, help=f"training tokens of each model (default: {defaults})")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.tokens is not None and arguments.tokens <= 0:
        parser.error(f"--tokens must be above 0, not {arguments.tokens}")
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable[arguments.device]:
        names = ", ".join(name for name, is_usable in usable.items() if is_usable)
        parser.error(f"--device {arguments.device} cannot be used here; use one of: {names}")
    roles: Sequence[Role] = get_args(Role) if arguments.model == "all" else [arguments.model]
    compiled = any(shutil.which(name) for name in ("g++", "clang++"))
    for role in roles:
        recipe = Recipe.of(role, arguments.seed, arguments.tokens)
        trainer = Trainer(recipe, arguments.device, compiled=compiled)
        trainer.run()
        trainer.save(arguments.out / role)


if __name__ == "__main__":
    main()
