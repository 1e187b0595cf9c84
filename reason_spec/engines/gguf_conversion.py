"""A program that converts a GGUF file to a folder of safetensors: ``python -m`` with the file and the folder.

It prints the numbers of converted tensors and of all tensors.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

FLOAT32_PARAMETERS: Final = 10**9
"""Larger models are written in bfloat16, which keeps most bits of dequantized weights."""


def convert(source: Path, folder: Path) -> None:
    """Write configuration, tokenizer and dequantized weights of a GGUF file into a new folder.

    Raises:
        ValueError: the file is one of several parts, or lacks a weight.
        Exception: whatever transformers raises for a file that it cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    _require_whole(source)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    modeling_gguf_pytorch_utils.tqdm = _print_progress
    arguments: dict[str, Any] = {"gguf_file": source.name}
    model: Any
    model, info = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.float32, output_loading_info=True, **arguments
    )
    if missing := info["missing_keys"]:
        # transformers has filled it with random numbers.
        raise ValueError(f"the file has no weights for {min(missing)} ({len(missing)} are missing)")
    if model.num_parameters() > FLOAT32_PARAMETERS:
        model = model.to(torch.bfloat16)
    # transformers refuses to save quantized models.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **arguments).save_pretrained(folder)


def _require_whole(source: Path) -> None:
    from gguf import GGUFReader, Keys

    field = GGUFReader(source).get_field(Keys.Split.LLM_KV_SPLIT_COUNT)
    if field is not None and (num_parts := int(field.contents())) > 1:
        # Without the other parts the output layer may be missing, which reads as tied embeddings.
        raise ValueError(f"it is one of {num_parts} parts; join them with: llama-gguf-split --merge")


def _print_progress(tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
    """Replace the progress bar of transformers."""
    known = list(tensors)
    for number, tensor in enumerate(known):
        sys.stdout.write(f"{number} {len(known)}\n")
        sys.stdout.flush()
        yield tensor
    sys.stdout.write(f"{len(known)} {len(known)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # An interrupt ends the process at once: imports of transformers turn a KeyboardInterrupt into others.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["HF_HUB_OFFLINE"] = "1"
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
