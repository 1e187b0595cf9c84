"""Make a target of any depth: the same answers, at the real cost of more layers.

Layers whose two output projections are zero add nothing to the residual stream, but every pass pays for them.
Such models serve studies of cost: the speed-up at another ratio of target to draft. A padded model says so in
its configuration and in the README beside it.

    python -m reason_spec.lab.pair.pad --layers 48 DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reason_spec.errors import DataError, ReasonSpecError, SettingsError
from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import load_pair_model
from reason_spec.pair.model import append_idle_layers, save_model

PADDED_FROM = "reason_spec_padded_from_layers"
"""Key of ``config.json`` that holds the depth before padding."""


def pad(source: Path, layers: int, out: Path) -> None:
    """Write a copy of a model of the pair, made ``layers`` deep, into the new folder ``out``.

    Raises:
        SettingsError: ``layers`` is not more than the model has, or ``out`` is there already.
        DataError: ``source`` holds no model.
    """
    if out.exists() and any(out.iterdir()):
        raise SettingsError(f"{out} is not empty; name a new folder")
    try:
        loaded = load_pair_model(source)
    except (OSError, ValueError) as error:
        raise DataError(f"{source} holds no model that can be padded: {error}") from error
    config = loaded.model.config
    before = config.num_hidden_layers
    if layers <= before:
        raise SettingsError(f"--layers {layers} must be more than the {before} layers of {source}")
    origin = int(getattr(config, PADDED_FROM, before))
    setattr(config, PADDED_FROM, origin)
    append_idle_layers(loaded.model, layers)
    save_model(loaded.model, loaded.tokenizer, out)
    (out / "README.md").write_text(
        f"# A padded model\n\n{origin} layers of this model were trained; {layers - origin} were added that\n"
        "do nothing but cost time. It answers as the model it was made from. Figures measured with it are\n"
        "figures of cost alone and must be called padded.\n",
        encoding="utf-8",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Make a target deeper, and more expensive, without changing its output."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.pad", description=main.__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="new folder for the padded model")
    parser.add_argument("--layers", type=int, required=True, help="layers in all")
    parser.add_argument("--model", type=Path, help="folder to start from (default: the embedded target)")
    arguments = parser.parse_args(argv)
    try:
        pad(arguments.model or embedded_path("target"), arguments.layers, arguments.out)
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{arguments.out}: {arguments.layers} layers (padded)")


if __name__ == "__main__":
    main()
