"""Encodes past conversations to the tokens of real ones: prompts by the chat template, and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from reason_spec.errors import DataError, EngineError
from reason_spec.suffix.base import Session, Source, num_shared
from reason_spec.suffix.traces import Conversation, TraceCall, TraceMessage, openai_messages

PROBE: Final = "QZPROBE"
"""A text that finds out what a chat template renders."""


class ChatTokenizer(Protocol):
    """The required part of ``reason_spec.engines.base.Tokenizer``."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """End-of-text token ids."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode text without special tokens."""

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        """Decode with the names of special tokens."""

    def encode_chat(self, messages: Sequence[Any]) -> tuple[int, ...]:
        """Encode a conversation up to the start of the assistant's answer."""


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """The whole prompt of one turn by source, and the model's output, which may be empty in the last turn."""

    prompt: tuple[tuple[Source, tuple[int, ...]], ...]
    output: tuple[int, ...]


class _Text(NamedTuple):
    """Tokens, each with its source."""

    tokens: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def segments(self) -> tuple[tuple[Source, tuple[int, ...]], ...]:
        runs = groupby(zip(self.sources, self.tokens, strict=True), key=itemgetter(0))
        return tuple((source, tuple(token for _, token in run)) for source, run in runs)

    def extended(self, tokens: tuple[int, ...], source: Source) -> _Text:
        return _Text(self.tokens + tokens, self.sources + (source,) * len(tokens))

    def shared_with(self, tokens: tuple[int, ...]) -> _Text:
        """Return the common prefix with ``tokens``."""
        shared = num_shared(self.tokens, tokens)
        return _Text(self.tokens[:shared], self.sources[:shared])


class ConversationEncoder:
    """Encodes conversations with a model's tokenizer and chat template.

    If the template does not render tool calls, they become part of the text in the form that most models
    write. If it renders the first call of a turn only, each call becomes a turn of its own. If it refuses
    tool results, these become user messages.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._takes_calls = shows_calls(tokenizer)
        self._takes_results = shows_results(tokenizer)
        self._splits_calls = self._takes_calls and not shows_several_calls(tokenizer)

    def turns(self, conversation: Conversation) -> Iterator[EncodedTurn]:
        """Yield the turns of a conversation, one for each answer in it.

        Raises:
            EngineError: the chat template refuses the conversation.
        """
        messages = conversation.messages
        if self._splits_calls:
            messages = tuple(_one_call_a_turn(messages))
        places = [index for index, message in enumerate(messages) if message.role == "assistant"]
        # A conversation that starts with an answer has an empty prompt.
        prompts = {index: self._encode(messages[:index]) if index else () for index in places}
        known = _Text()
        last = -1
        for place, following in zip(places, [*places[1:], None], strict=True):
            known = self._attributed(prompts[place], known, messages[:place], last)
            next_prompt = prompts.get(following) if following else None
            output = self._answer(messages, place, prompts[place], next_prompt)
            yield EncodedTurn(known.segments, output)
            known = known.extended(output, "output")
            last = place
        if last + 1 < len(messages):
            known = self._attributed(self._encode(messages), known, messages, last)
            yield EncodedTurn(known.segments, ())

    def _attributed(
        self, prompt: tuple[int, ...], known: _Text, messages: Sequence[TraceMessage], last: int
    ) -> _Text:
        """Return a prompt by source: that of the known prefix, then that of the messages after ``last``."""
        made = known.shared_with(prompt)
        for place in range(last + 1, len(messages)):
            source = messages[place].source
            if place + 1 == len(messages):
                end = len(prompt)
            elif messages[place + 1].source == source:
                continue
            else:
                end = num_shared(prompt, self._encode(messages[: place + 1]))
            made = made.extended(prompt[len(made.tokens) : end], source)
        # Where an answer follows another one, only the start of its turn is new.
        return made.extended(prompt[len(made.tokens) :], "prompt")

    def _answer(
        self,
        messages: Sequence[TraceMessage],
        place: int,
        prompt: tuple[int, ...],
        next_prompt: tuple[int, ...] | None,
    ) -> tuple[int, ...]:
        """Return the model's output as the template renders it, up to its end of text."""
        message = messages[place]
        if next_prompt is None or message.reasoning:
            # Most templates render the reasoning of the last answer only.
            next_prompt = self._encode(messages[: place + 1])
        if prompt and next_prompt[: len(prompt)] == prompt:
            shown = next_prompt[len(prompt) :]
            end = next((i for i, token in enumerate(shown) if token in self._tokenizer.eos_ids), None)
            if end is not None:
                return shown[: end + 1]
        eos = tuple(self._tokenizer.eos_ids)
        return self._tokenizer.encode(message.text_with_calls) + (eos if len(eos) == 1 else ())

    def _encode(self, messages: Sequence[TraceMessage]) -> tuple[int, ...]:
        return self._tokenizer.encode_chat(
            openai_messages(messages, calls=self._takes_calls, tools=self._takes_results)
        )


def _one_call_a_turn(messages: Iterable[TraceMessage]) -> Iterator[TraceMessage]:
    """Yield messages where a turn with several calls is one turn for each call, followed by its result.

    Text and reasoning stay in the first turn. Results are matched with calls by their order.
    """
    left: list[TraceMessage] = []
    for message in messages:
        if message.role == "tool":
            yield message
            if left:
                yield left.pop(0)
        else:
            yield from left
            yield message.model_copy(update={"calls": message.calls[:1]})
            left = [TraceMessage(role="assistant", calls=(call,)) for call in message.calls[1:]]
    yield from left


def shows_calls(tokenizer: ChatTokenizer) -> bool:
    """Whether a model's chat template renders tool calls."""
    return _shows(tokenizer, _calls(PROBE), calls=True)


def shows_several_calls(tokenizer: ChatTokenizer) -> bool:
    """Whether a model's chat template renders each of several tool calls in one turn."""
    return _shows(tokenizer, _calls("first", PROBE), calls=True)


def shows_results(tokenizer: ChatTokenizer) -> bool:
    """Whether a model's chat template renders tool results."""
    # Some templates refuse a result without a call before it.
    result = TraceMessage(role="tool", text=PROBE)
    return _shows(tokenizer, _calls("first"), result, calls=shows_calls(tokenizer))


def _calls(*names: str) -> TraceMessage:
    calls = tuple(TraceCall(name=name, arguments={"a": 1}) for name in names)
    return TraceMessage(role="assistant", calls=calls)


def _shows(tokenizer: ChatTokenizer, *messages: TraceMessage, calls: bool) -> bool:
    user = TraceMessage(role="user", text="?")
    asked = (user, *messages, user)
    try:
        tokens = tokenizer.encode_chat(openai_messages(asked, calls=calls, tools=True))
    except EngineError:
        return False
    return PROBE in tokenizer.decode_prompt(tokens)


def learn(conversation: Conversation, encoder: ConversationEncoder, session: Session) -> int:
    """Learn a past conversation in a session; return the number of its output tokens.

    Raises:
        DataError: the model's chat template refuses the conversation; the message names its line.
    """
    written = 0
    try:
        for turn in encoder.turns(conversation):
            session.begin(turn.prompt)
            if turn.output:
                session.extend(turn.output)
            written += len(turn.output)
    except EngineError as error:
        raise DataError(f"line {conversation.line}: {error}") from None
    return written
