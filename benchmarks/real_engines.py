"""What `real.py` runs on: one group of engines for each source of drafts, and searched numbers."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from arms import Ours, settings_of
from models import Task

from reason_spec.accelerator import Accelerator
from reason_spec.cli.options import parse_assignments
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.model_package import find_packaged
from reason_spec.errors import ReasonSpecError
from reason_spec.settings import load_settings

_SEARCHED_PROBLEMS: Final = 3
_HANG_SECONDS: Final = 3600.0
NGRAM: Final = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True)
class Group:
    """Engines that rows share: settings, the strategies that they serve, and what is searched.

    Attributes:
        speculative: vLLM's ``speculative_config`` without the number of tokens; None: not vLLM's own method.
        num_draft_tokens: what the search found; None: nothing was searched.
    """

    name: str
    flags: Mapping[str, Any]
    strategies: tuple[str, ...]
    speculative: Mapping[str, Any] | None = None
    num_draft_tokens: int | None = None

    def with_draft_tokens(self, number: int) -> Group:
        """Return the group in which vLLM drafts so many tokens."""
        assert self.speculative is not None
        config = {**self.speculative, "num_speculative_tokens": number}
        arguments = {**self.flags.get("target.vllm.arguments", {}), "speculative_config": config}
        return replace(
            self, flags={**self.flags, "target.vllm.arguments": arguments}, num_draft_tokens=number
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """A group whose engines run."""

    group: Group
    ours: Ours
    accelerator: Accelerator

    def num_cores(self, strategy: str) -> int:
        """Return the number of cores of the target under a strategy."""
        return len(self.accelerator.target_cores(strategy))


def draft_tokens(text: str) -> int:
    """Return a number of draft tokens.

    Raises:
        ArgumentTypeError: it is no number of at least 1.
    """
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of draft tokens: give at least 1")
    return number


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, beside ``--target``, that `groups_of` and `open_group` read."""
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--draft", help="folder of a draft, such as draft train makes")
    parser.add_argument("--head", help="folder of a draft head: EAGLE-3 under vLLM")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6])
    parser.add_argument(
        "--draft-tokens",
        type=draft_tokens,
        nargs="+",
        default=[1, 2, 3, 4, 8],
        metavar="N",
        help="numbers of draft tokens to try for vLLM's own methods (default: 1 2 3 4 8)",
    )
    parser.add_argument("--eager", action="store_true", help="do not compile vLLM's models: starts at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings of all rows, such as target.dtype=bfloat16",
    )


def groups_of(options: argparse.Namespace) -> list[Group]:
    """Return the groups of an engine, the baseline's first."""
    common = {
        "target.model": options.target,
        "target.kind": options.engine,
        "target.device": options.device,
        # Under load the load controller lets the target write alone: its answers would be graded as others'.
        "load_control.use": "off",
        # The generate of transformers keeps this process from hearing the workers.
        "target.hang_timeout": _HANG_SECONDS,
        "draft.hang_timeout": _HANG_SECONDS,
        **parse_assignments(options.set),
    }
    drafted: dict[str, Any] = {}
    if options.draft is not None:
        drafted = {
            "draft.model": options.draft,
            "draft.kind": options.engine,
            "draft.device": options.device,
        }
    alone = ("autoregressive",)
    ours: tuple[str, ...] = (*alone, "prompt_lookup", "token_recycling")
    if drafted:
        ours = (*ours, "speculative", "lookahead", "hybrid")
    if options.engine == "torch":
        groups = [Group("ours", common | drafted, ours)]
        groups.append(Group("self", {**common, "draft.model": "self"}, ("self_speculative",)))
        suffix = {**common, "suffix.use": "tokens"}
        groups.append(Group("suffix", suffix, ("prompt_lookup",)))
        groups.append(Group("published", {**suffix, "suffix.rule": "published"}, ("prompt_lookup",)))
        if options.head is not None:
            groups.append(Group("head", {**common, "draft.model": options.head}, ("self_speculative",)))
            headed = {**common, **drafted, "target.drafter": options.head}
            groups.append(Group("headed", headed, (*alone, "lookahead", "hybrid")))
        return groups
    torch = Group("torch", {**common, "target.kind": "torch"}, alone)
    eager = {"enforce_eager": options.eager}
    common["target.vllm.arguments"] = eager
    if drafted:
        drafted |= {"draft.vllm.arguments": eager, "draft.vllm.token_method": "none"}

    def own(method: str, config: Mapping[str, Any]) -> Group:
        return Group(method, {**common, "target.vllm.token_method": method}, alone, config)

    groups = [
        Group("none", {**common, "target.vllm.token_method": "none"}, alone),
        torch,
        Group("ours", {**common, "target.vllm.token_method": "hint"} | drafted, ours[1:]),
        own("ngram", NGRAM),
        own("suffix", {}),
    ]
    if options.draft is not None:
        groups.append(own("draft_model", {"model": resolve_model("draft", options.draft)}))
    if options.head is not None:
        groups.append(own("eagle3", {"model": str(find_packaged(options.head) or options.head)}))
    return groups


async def open_group(
    group: Group, options: argparse.Namespace, chosen: Sequence[Task], stack: AsyncExitStack
) -> Opened | None:
    """Start a group's engines, with the best number of cores and of draft tokens; None if they cannot start.

    The reason is printed.
    """
    try:
        if group.speculative is not None:
            group = await _with_best_draft_tokens(group, options, chosen)
        return await _open(group, stack)
    except ReasonSpecError as error:
        sys.stderr.write(f"rows of {group.name} are left out: {error}\n")
        return None


async def _open(group: Group, stack: AsyncExitStack) -> Opened:
    settings = load_settings(flags={**group.flags, "strategy.name": group.strategies[-1]})
    made = Accelerator.from_settings(settings, strategies=group.strategies)
    accelerator = await stack.enter_async_context(made)
    every = accelerator.bundle.cores.every
    sizes = (1 << power for power in range(len(every).bit_length()))
    await accelerator.bundle.cores.calibrate(every[:size] for size in sizes)
    opened = Opened(group, Ours(accelerator, until_loop=True), accelerator)
    number = opened.num_cores("autoregressive")
    sys.stderr.write(f"{group.name}: started; cores on which the target alone is fastest: {number}\n")
    return opened


async def _with_best_draft_tokens(group: Group, options: argparse.Namespace, chosen: Sequence[Task]) -> Group:
    """Return the group with the number of draft tokens that writes some of the problems fastest."""
    seconds: dict[int, float] = {}
    tried = random.Random(options.seed).sample(list(chosen), min(_SEARCHED_PROBLEMS, len(chosen)))
    for number in options.draft_tokens:
        trial = group.with_draft_tokens(number)
        async with AsyncExitStack() as stack:
            ours = (await _open(trial, stack)).ours
            settings = settings_of(
                dict(trial.flags), trial.strategies[-1], options.temperatures[0], options.max_tokens
            )
            await ours.prepare(settings)
            await ours.solve(settings, tried[0], 0)
            runs = []
            for index, task in enumerate(tried):
                await ours.prepare(settings)
                runs.append(await ours.solve(settings, task, index))
        seconds[number] = sum(run.seconds for run in runs) / max(1, sum(run.num_tokens for run in runs))
    best = min(seconds, key=seconds.__getitem__)
    shown = ", ".join(f"{number}: {1000 * time:.1f} ms" for number, time in seconds.items())
    sys.stderr.write(f"{group.name}: a token takes with so many draft tokens {shown}; {best} are taken\n")
    return group.with_draft_tokens(best)
