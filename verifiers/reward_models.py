"""Classifiers of transformers as reward models, for a whole text or read at step tokens.

A process reward model such as Qwen2.5-Math-PRM (arXiv 2501.07301) rates a step at a special token after it.
The text is cut there, so the reward of the last step is the output at the last token. The rest of the chat
template would not change it, as these models are causal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reason_spec.errors import SettingsError
from reason_spec.loading import LOADING
from reason_spec.verifiers.batching import no_progress_bars
from reason_spec.verifiers.reward import PROBE, Reward, SoFar, StepToken

if TYPE_CHECKING:
    import torch


def load_classifier(
    model: str, step_token: StepToken | None = None, *, trust_remote_code: bool = False
) -> Reward:
    """Load a classifier of transformers as a reward model.

    It reads question and answer in its chat template. With one output the reward is its sigmoid, with two
    the chance of the second.

    Args:
        model: folder or Hugging Face id.
        step_token: the token after each step of a token classifier, read at the last one. None: a sequence
            classifier.
        trust_remote_code: run code that comes with the model.

    Raises:
        SettingsError: it cannot be loaded or run, has no head or other outputs, or lacks the token.
    """
    import torch

    try:
        with LOADING, no_progress_bars():
            tokenizer, module = _load(model, by_token=step_token is not None, trusted=trust_remote_code)
    except Exception as error:
        # A model's own code fails in its own ways.
        raise _not_loadable(model, error) from error
    if step_token is not None:
        _check_token(tokenizer, model, step_token.text)

    @torch.inference_mode()
    def reward(texts: Sequence[SoFar]) -> list[float]:
        shown = [_render(tokenizer, text, step_token) for text in texts]
        # Without a token for padding they go one by one: padded with another token, a sequence classifier
        # would not know where its text ends.
        batches = [[text] for text in shown] if tokenizer.pad_token_id is None else [shown]
        outputs = [_outputs(tokenizer, module, batch, by_token=step_token is not None) for batch in batches]
        return [chance for rows in outputs for chance in _chances(rows)]

    try:
        reward([PROBE])
    except Exception as error:
        raise SettingsError(f"verifier.reward_model = {model!r} rates no solutions: {error}") from error
    return reward


def _load(model: str, *, by_token: bool, trusted: bool) -> tuple[Any, Any]:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
    )

    config = AutoConfig.from_pretrained(model, trust_remote_code=trusted)
    factory = AutoModelForTokenClassification if by_token else AutoModelForSequenceClassification
    own_classes = getattr(config, "auto_map", None) or {}
    if trusted and factory.__name__ not in own_classes and "AutoModel" in own_classes:
        # Models with code of their own are often entered as plain models only, heads and all.
        factory = AutoModel
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
    module, found = factory.from_pretrained(model, trust_remote_code=trusted, output_loading_info=True)
    if found["missing_keys"]:
        # transformers makes random ones and warns; their rewards would look like any others.
        missing = ", ".join(sorted(found["missing_keys"])[:3])
        own_code = "; its own code needs trust_remote_code" if own_classes and not trusted else ""
        raise ValueError(f"it has no weights for {missing} of a {type(module).__name__}{own_code}")
    # Right-hand padding moves no token from its position.
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is not None:
        module.config.pad_token_id = tokenizer.pad_token_id
    module.config.use_cache = False
    return tokenizer, module.eval()


def _not_loadable(model: str, error: Exception) -> SettingsError:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    remedy = ""
    if "trust_remote_code" in str(error):
        remedy = ". Set verifier.reward_trust_remote_code if you trust the code that comes with it"
    return SettingsError(
        f"verifier.reward_model = {model!r} cannot be loaded: {first_line.rstrip('.')}{remedy}"
    )


def _check_token(tokenizer: Any, model: str, text: str) -> None:
    """Refuse an unknown step token: the model would rate it as plain text."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise SettingsError(
            f"verifier.reward_step_token = {text!r} is no token of {model!r}; its card names the one that it "
            "was trained with"
        )


def _render(tokenizer: Any, text: SoFar, step_token: StepToken | None) -> str:
    answer = text.answer if step_token is None else step_token.mark(text.answer)
    if tokenizer.chat_template is None:
        return f"{text.question}\n\n{answer}"
    turns = [{"role": "user", "content": text.question}, {"role": "assistant", "content": answer}]
    # The final turn is left open after a step token: the rest of the template comes later.
    return str(
        tokenizer.apply_chat_template(turns, tokenize=False, continue_final_message=step_token is not None)
    )


def _outputs(tokenizer: Any, module: Any, texts: Sequence[str], *, by_token: bool) -> torch.Tensor:
    """Return the outputs of a classifier for each text, or for its last token: [texts, outputs]."""
    import torch

    encoded = tokenizer(list(texts), padding=len(texts) > 1, return_tensors="pt", add_special_tokens=False)
    # Some tokenizers return more than their model takes.
    mask = encoded["attention_mask"]
    logits: torch.Tensor = module(input_ids=encoded["input_ids"], attention_mask=mask)[0]
    if by_token != (logits.ndim == 3):
        kind, remedy = ("a whole text", "leave out") if by_token else ("every token", "set")
        raise ValueError(f"it rates {kind}; {remedy} verifier.reward_step_token")
    if by_token:
        logits = logits[torch.arange(len(texts)), mask.sum(1) - 1]
    return logits.float()


def _chances(logits: torch.Tensor) -> list[float]:
    if logits.shape[1] not in (1, 2):
        raise ValueError(f"it has {logits.shape[1]} outputs; one or two are known")
    chances = logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]
    return [float(chance) for chance in chances]
