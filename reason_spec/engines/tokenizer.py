"""The tokenizer of a Hugging Face model, with exact incremental decoding.

``tokenizer.json`` is read with the ``tokenizers`` package, so the main process does not need torch. Each
token has bytes of its own, whatever its neighbours, and a text is their concatenation. So decoding is exact
where a step starts with a space, and where the tokens of a character stay together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from reason_spec.engines.chat_template import PLAIN_CHAT, ChatOptions, Message, render_template
from reason_spec.engines.model_files import find_file, read_json
from reason_spec.errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_METASPACE = "\u2581"
_ANCHOR = "\n"
_SETTINGS_FILES = (
    "tokenizer_config.json",
    "generation_config.json",
    "config.json",
    "special_tokens_map.json",
)


_ANSWER: Final = "THE-ANSWER-SO-FAR"
"""Marks the place of an answer in a rendered template."""
CHANNEL_TOKENS: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
"""The tokens around messages and their channels, where a chat template has channels (gpt-oss)."""
CONSTRAIN_TOKEN: Final = "<|constrain|>"
"""The token before the type of a message, such as ``json``, there."""


class HuggingFaceTokenizer:
    """A model's tokenizer; see ``reason_spec.engines.base.Tokenizer``.

    `CHANNEL_TOKENS` and `CONSTRAIN_TOKEN` are part of the text where the chat template has channels: they end
    a thinking, and stand before calls.

    Args:
        rust: the tokenizer of the ``tokenizers`` package.
        eos_ids: ids that end the text.
        special_tokens: named special tokens (``bos_token`` and so on) for the chat template.
        chat_template: a Jinja template; None if the model has none.
        chat_arguments: further variables of the template, such as ``enable_thinking``.
    """

    def __init__(
        self,
        rust: RustTokenizer,
        *,
        eos_ids: frozenset[int],
        special_tokens: dict[str, str] | None = None,
        chat_template: str | None = None,
        chat_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if CHANNEL_TOKENS[1] in (chat_template or ""):
            rust = _with_plain_tokens(rust, (*CHANNEL_TOKENS, CONSTRAIN_TOKEN), but=eos_ids)
        self._rust = rust
        rust.encode_special_tokens = True
        self._rust_for_chats: RustTokenizer | None = None
        self._making_chat_rust = Lock()
        self._eos_ids = eos_ids
        self._special_tokens = special_tokens or {}
        self._chat_template = chat_template
        self._chat_arguments = dict(chat_arguments or {})
        self._token_bytes = _bytes_of_vocabulary(rust)
        added = rust.get_added_tokens_decoder()
        self._special_names = {token: piece.content for token, piece in added.items() if piece.special}
        self._tokenizer_id = _hash_of(rust.get_vocab(with_added_tokens=True))
        self._anchor_ids = self._encode_raw(_ANCHOR)
        self._adds_space = self._decode_bytes(self._encode_raw("a")) != b"a"

    @property
    def tokenizer_id(self) -> str:
        return self._tokenizer_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def end_id(self) -> int | None:
        named = self._rust.token_to_id(self._special_tokens.get("eos_token", ""))
        return named if named in self._eos_ids else min(self._eos_ids, default=None)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that end the text, and of all special tokens."""
        return self._eos_ids | self._special_names.keys()

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._token_bytes)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode text by itself; the names of special tokens inside it are plain text."""
        if self._adds_space:
            # SentencePiece vocabularies put a space before the first word of a text. A step follows other
            # text, so it is encoded after an anchor whose tokens are removed again.
            ids = self._encode_raw(_ANCHOR + text)
            if ids[: len(self._anchor_ids)] == self._anchor_ids:
                return ids[len(self._anchor_ids) :]
        return self._encode_raw(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        """Decode with special tokens by their names, for servers that read prompts as text.

        A begin-of-text token at the start is left out: servers put it there themselves.
        """
        beginning = self._rust.token_to_id(self._special_tokens.get("bos_token", ""))
        if tokens and tokens[0] == beginning:
            tokens = tokens[1:]
        pieces = [
            self._special_names[token].encode() if token in self._special_names else self.token_bytes(token)
            for token in tokens
        ]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return a token's bytes; ids beyond the vocabulary (padding of the model) have none."""
        return self._token_bytes[token] if 0 <= token < len(self._token_bytes) else b""

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Encode a whole prompt with special tokens by name, after those that the tokenizer adds first."""
        return tuple(self._chat_rust().encode(text, add_special_tokens=True).ids)

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        """Encode a conversation with the model's chat template.

        A model without one gets the contents as paragraphs, after its begin-of-text token if its tokenizer
        adds one.

        Raises:
            EngineError: the template refuses the conversation, or omits the message to continue.
        """
        if self._chat_template is None:
            text = "\n\n".join(message["content"] for message in messages)
            text += "" if options.continue_final else "\n"
            return tuple(self._chat_rust().encode(text, add_special_tokens=True).ids)
        rendered = self.render_chat(messages, options)
        return tuple(self._chat_rust().encode(rendered, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Format a conversation with the chat template, which the model must have."""
        assert self._chat_template is not None, "the model has no chat template"
        arguments = {**self._special_tokens, **self._chat_arguments, **options.arguments}
        if options.tools:
            arguments["tools"] = list(options.tools)
        if not options.continue_final:
            return render_template(self._chat_template, messages, arguments)
        final = messages[-1]
        marked = Message(role=final["role"], content=_ANSWER)
        before, found, _ = render_template(
            self._chat_template, [*messages[:-1], marked], {**arguments, "add_generation_prompt": False}
        ).rpartition(_ANSWER)
        if not found:
            raise EngineError("the model's chat template omits the last message, so it cannot be continued")
        return before + final["content"]

    def encode_turn(self, question: str) -> tuple[int, ...]:
        """Encode the end of an answer and a further question, up to the beginning of the reply.

        Raises:
            EngineError: the chat template omits earlier answers.
        """
        if self._chat_template is None:
            return self._encode_raw(f"\n\n{question}\n")
        turns: list[Message] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": question},
        ]
        text = render_template(self._chat_template, turns, {**self._special_tokens, **self._chat_arguments})
        _, found, rest = text.partition(_ANSWER)
        if not found:
            raise EngineError(
                "the model's chat template omits earlier answers, so no question can be asked about one"
            )
        return tuple(self._chat_rust().encode(rest, add_special_tokens=False).ids)

    def _chat_rust(self) -> RustTokenizer:
        """Return the tokenizer that reads names of special tokens.

        It is a second object: the switch belongs to the object, and other threads encode at the same time.
        """
        with self._making_chat_rust:
            if self._rust_for_chats is None:
                self._rust_for_chats = type(self._rust).from_str(self._rust.to_str())
                self._rust_for_chats.encode_special_tokens = False
        return self._rust_for_chats

    def _encode_raw(self, text: str) -> tuple[int, ...]:
        return tuple(self._rust.encode(text, add_special_tokens=False).ids)

    def _decode_bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.token_bytes(token) for token in tokens])


def load_tokenizer(
    model: str, revision: str | None = None, chat_arguments: Mapping[str, Any] | None = None
) -> HuggingFaceTokenizer:
    """Load the tokenizer of a model given by folder or Hugging Face id.

    Raises:
        EngineError: there is none, or it cannot be read; the message names the model and the remedy.
    """
    from tokenizers import Tokenizer as RustTokenizer

    if not Path(model).exists() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise EngineError(f"model folder {model!r} does not exist")
    path = find_file(model, "tokenizer.json", revision, required=True)
    if path is None:
        raise EngineError(
            f"model {model!r} has no tokenizer.json; give a folder that holds one, or the id of a model that "
            "comes with one. An older tokenizer is converted by transformers: "
            f"AutoTokenizer.from_pretrained({model!r}).save_pretrained(FOLDER)"
        )
    settings = {name: read_json(find_file(model, name, revision)) for name in _SETTINGS_FILES}
    try:
        rust = RustTokenizer.from_file(str(path))
    except Exception as error:
        raise EngineError(f"tokenizer {str(path)!r} cannot be read: {error}") from None
    rust.no_truncation()
    rust.no_padding()
    special_tokens = _special_tokens(settings)
    return HuggingFaceTokenizer(
        rust,
        eos_ids=_eos_ids(rust, settings, special_tokens),
        special_tokens=special_tokens,
        chat_template=_chat_template(model, settings["tokenizer_config.json"], revision),
        chat_arguments=chat_arguments,
    )


@lru_cache(maxsize=16)
def lacks_chat_template(model: str, revision: str | None = None) -> bool:
    """Return whether a model given by folder or Hugging Face id has a tokenizer and no chat template.

    Raises:
        EngineError: its files cannot be read.
    """
    if find_file(model, "tokenizer.json", revision) is None:
        return False
    config = read_json(find_file(model, "tokenizer_config.json", revision))
    return _chat_template(model, config, revision) is None


def _special_tokens(settings: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the named special tokens, ``eos_token`` and so on; a token may be written as an object."""
    found: dict[str, str] = {}
    for source in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in settings[source].items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                found[name] = content
    return found


def _eos_ids(
    rust: RustTokenizer, settings: dict[str, dict[str, Any]], special_tokens: dict[str, str]
) -> frozenset[int]:
    ids: set[int] = set()
    for source in ("generation_config.json", "config.json"):
        value = settings[source].get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    if "eos_token" in special_tokens and (token := rust.token_to_id(special_tokens["eos_token"])) is not None:
        ids.add(token)
    return frozenset(ids)


def _chat_template(model: str, config: dict[str, Any], revision: str | None) -> str | None:
    if (path := find_file(model, "chat_template.jinja", revision)) is not None:
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _bytes_of_vocabulary(rust: RustTokenizer) -> list[bytes]:
    """Return the bytes of each id, by the kind of the tokenizer's decoder."""
    vocabulary: dict[str, int] = rust.get_vocab(with_added_tokens=True)
    added = rust.get_added_tokens_decoder()
    to_bytes = _piece_decoder(rust)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token in vocabulary.items():
        if token in added:
            table[token] = b"" if added[token].special else added[token].content.encode()
        else:
            table[token] = to_bytes(piece)
    return table


def _with_plain_tokens(rust: RustTokenizer, names: Sequence[str], *, but: frozenset[int]) -> RustTokenizer:
    """Return the tokenizer with these tokens as text: the names of special tokens are left out of a text."""
    content = json.loads(rust.to_str())
    for token in content["added_tokens"]:
        token["special"] &= token["content"] not in names or token["id"] in but
    return type(rust).from_str(json.dumps(content))


def _piece_decoder(rust: RustTokenizer) -> Callable[[str], bytes]:
    decoder = json.loads(rust.to_str()).get("decoder") or {}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if part]
    if "ByteLevel" in kinds:
        return _byte_level_decoder()
    if "ByteFallback" in kinds or "Metaspace" in kinds or "Replace" in kinds:
        return _decode_metaspace_piece
    if not kinds:
        return str.encode
    raise EngineError(
        f"the tokenizer decodes by {', '.join(kinds)}, which joins tokens by their neighbours; byte-level "
        "and SentencePiece vocabularies are supported"
    )


def _byte_level_decoder() -> Callable[[str], bytes]:
    """Invert GPT-2's printable stand-ins for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in table.values()]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})

    def decode(piece: str) -> bytes:
        if all(character in table for character in piece):
            return bytes([table[character] for character in piece])
        return piece.encode()

    return decode


def _decode_metaspace_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_METASPACE, " ").encode()


def _hash_of(vocabulary: dict[str, int]) -> str:
    digest = hashlib.sha256()
    for piece, token in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{token}:{len(piece)}:{piece}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
