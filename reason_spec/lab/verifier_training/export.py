"""What is shipped of a trained encoder: an ONNX model with 8-bit weights, and its calibration."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch

from reason_spec.errors import DataError, MissingDependencyError, SettingsError
from reason_spec.lab.verifier_training.encoder import PairClassifier
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.verifiers.evidence import Evidence, find_evidence
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.pair_encoder import (
    CONFIG,
    MAX_TOKENS,
    MODEL,
    TOKENIZER,
    Calibration,
    encode_pair,
    load_model,
    run_model,
)

_INPUTS: Final = ("ids", "mask", "types")
_OPSET: Final = 17


def export_encoder(model: PairClassifier, tokenizer: Path, folder: Path) -> None:
    """Write the model in ONNX form, its weights in 8 bits, and its tokenizer.

    Args:
        model: from `train_encoder`.
        tokenizer: file to copy.

    Raises:
        MissingDependencyError: onnx is not installed.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise MissingDependencyError("onnx", "writing a trained verifier") from None
    folder.mkdir(parents=True, exist_ok=True)
    example = tuple(torch.ones(2, 12, dtype=torch.long) for _ in _INPUTS)
    with TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = Path(scratch) / MODEL
        torch.onnx.export(
            model.eval(),
            example,
            str(whole),
            input_names=list(_INPUTS),
            output_names=["logits"],
            dynamic_axes={name: {0: "pairs", 1: "tokens"} for name in _INPUTS},
            opset_version=_OPSET,
            # The other exporter takes a package more.
            dynamo=False,
        )
        # onnxruntime advises a preparation that changes nothing here.
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            quantize_dynamic(
                str(whole),
                str(folder / MODEL),
                per_channel=True,
                weight_type=QuantType.QInt8,
            )
        finally:
            logging.disable(disabled)
    shutil.copyfile(tokenizer, folder / TOKENIZER)


def load_written(model: PairClassifier, folder: Path) -> None:
    """Put the weights of a written encoder into a model of the same shape, to train it further.

    They come back with the rounding of 8 bits.

    Raises:
        MissingDependencyError: onnx is not installed.
        SettingsError: the folder has no such encoder, or one of another shape.
    """
    try:
        import onnx
        from onnx.numpy_helper import to_array
    except ImportError:
        raise MissingDependencyError("onnx", "reading a trained verifier") from None
    try:
        graph = onnx.load(str(folder / MODEL)).graph
    except Exception as error:
        raise SettingsError(f"{str(folder)!r} holds no encoder of verifier train ({error})") from error
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    weights = {name: torch.tensor(array) for name, array in stored.items() if name in model.state_dict()}
    rounded = {name: name for name in model.state_dict()}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            # ``/head/head.0/Gemm_MatMul_quant``: a module's path, of which each part repeats its parent's.
            path = node.name.rsplit("/", 1)[0].strip("/").replace("/", ".").replace("head.head.", "head.")
            rounded[f"{path}.weight"] = node.input[1].removesuffix("_quantized")
    for name, source in rounded.items():
        if (array := stored.get(f"{source}_quantized")) is not None:
            scale, zero = stored[f"{source}_scale"], stored[f"{source}_zero_point"]
            weight = torch.tensor((array.astype(np.float32) - zero) * scale)
            weights[name] = weight if source == name else weight.T
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise SettingsError(f"{str(folder)!r}: the encoder has another shape ({error})") from error


def read_logits(folder: Path, pairs: Sequence[StepPair]) -> np.ndarray[Any, Any]:
    """Return the logits of the written model, [n]; NaN for pairs that are too long."""
    tokenizer, session = load_model(folder)
    return run_model(session, [encode_pair(tokenizer, pair.question, pair.a, pair.b) for pair in pairs])


def open_pairs(pairs: Sequence[StepPair]) -> list[StepPair]:
    """Return the pairs that numbers leave open, which the encoder decides."""
    return [pair for pair in pairs if find_objection(pair.a, pair.b, pair.question, pair.before) is None]


def calibrate(folder: Path, pairs: Sequence[StepPair], risk: float) -> Calibration:
    """Fit the probability and the threshold on pairs that the encoder was not trained on; write both.

    Args:
        risk: the most changed steps that may be accepted, as a share of the changed ones in ``pairs``. On
            other problems more are: weights and threshold are fitted on these very pairs.

    Raises:
        DataError: of one label there is no pair that numbers leave open and that is not too long.
    """
    from sklearn.linear_model import LogisticRegression

    num_changed = sum(not pair.same for pair in pairs)
    pairs = open_pairs(pairs)
    same = np.array([pair.same for pair in pairs])
    logits = read_logits(folder, pairs)
    usable = ~np.isnan(logits)
    if len(set(same[usable].tolist())) < 2:
        raise DataError(
            f"of {len(pairs)} pairs to calibrate on, {len(pairs) - int(usable.sum())} are too long (more "
            f"than {MAX_TOKENS} tokens), and the others are all the same, or all not: give pairs of shorter "
            "steps"
        )
    pairs = [pair for pair, is_usable in zip(pairs, usable, strict=True) if is_usable]
    seen = np.array([find_evidence(pair.a, pair.b, pair.question) for pair in pairs], np.float64)
    given, same = np.column_stack([logits[usable], seen]), same[usable]
    # C: no same pair has a missing number, so a plain fit would give that a weight without bounds.
    fitted = LogisticRegression(C=1.0, max_iter=1000).fit(given, same)
    slope, *weights = map(float, fitted.coef_[0])
    most = int(risk * num_changed)
    refused = np.sort(fitted.predict_proba(given[~same])[:, 1])[::-1]
    # Just above the first changed step that would be one too many.
    limit = float(refused[most]) if most < len(refused) else 0.0
    threshold = max(0.5, min(1.0, limit + 1e-4))
    by_name = dict(zip(Evidence._fields, weights, strict=True))
    found = Calibration(slope, float(fitted.intercept_[0]), threshold, by_name)
    (folder / CONFIG).write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    return found
