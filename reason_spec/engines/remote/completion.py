"""One generation at a remote server: the bodies of its requests, and the tokens of their answers.

A generation may take several requests. After a failure it continues after its tokens so far, maybe at another
server; if a server ends its request within a step, it continues too.
"""

from __future__ import annotations

import hashlib
import math
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from types import UnionType
from typing import Any

from reason_spec.engines.generation import Delta, EngineRequest, GenerationResult
from reason_spec.engines.grammars import structured_outputs
from reason_spec.engines.output import OutputText, RequestOutput
from reason_spec.engines.remote.servers import ServerError
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.jsonl import shorten
from reason_spec.segment import AUTO, BLANK_LINE, Boundary, BoundaryScanner
from reason_spec.speculation.seeds import seed_at
from reason_spec.types import FinishReason, Prefix, Usage


class RemoteCompletion(ABC):
    """A generation whose requests hold token ids or text."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._prompt = request.prefix.to_tuple()
        self._num_passes = 0

    @property
    def usage(self) -> Usage:
        """The work so far; each event with text counts as a pass."""
        num_generated, num_discarded = self._counts
        return Usage(
            num_prompt_tokens=len(self._prompt),
            num_generated_tokens=num_generated,
            num_discarded_tokens=num_discarded,
            num_passes=self._num_passes,
        )

    @property
    @abstractmethod
    def finish(self) -> FinishReason | None:
        """Why the generation ended; None before its end."""

    @property
    @abstractmethod
    def _counts(self) -> tuple[int, int]:
        """The numbers of generated and of discarded tokens."""

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the body of a request for the rest of the generation."""

    @abstractmethod
    def take(self, choice: dict[str, Any]) -> Delta | None:
        """Take one event of the stream; return the delta to deliver."""

    @abstractmethod
    def end(self, reason: str) -> Delta | None:
        """Take the server's finish reason after `take` found no end; return the delta to deliver.

        ``finish`` stays None if the generation needs another request.

        Raises:
            ServerError: the server ended its request by a failure.
        """

    @abstractmethod
    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        """Return the result; call it once, at the end."""


class TokenCompletion(RemoteCompletion):
    """Prompt and continuation as token ids, so no text is encoded again."""

    def __init__(
        self,
        request: EngineRequest,
        tokenizer: HuggingFaceTokenizer,
        max_context: int,
        boundary_ids: frozenset[int],
    ) -> None:
        super().__init__(request)
        self._ending = _end_of(tokenizer)
        self._boundary_ids = boundary_ids
        self._output = RequestOutput(request, tokenizer, max_context - len(self._prompt))
        self._stop_reason: object = None
        self._num_before = 0
        """Number of tokens before the present request."""

    @property
    def finish(self) -> FinishReason | None:
        return self._output.finish

    @property
    def _counts(self) -> tuple[int, int]:
        return len(self._output.tokens), self._output.num_discarded

    def body(self) -> dict[str, Any]:
        prompt = [*self._prompt, *self._output.tokens]
        self._num_before = len(self._output.tokens)
        return {
            "prompt": prompt,
            "max_tokens": self._output.max_tokens - len(self._output.tokens),
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(self._boundary_ids | self._request.stop_ids),
            # Servers have defaults of their own for these.
            "top_k": self._request.sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            **cache_salt_of(self._request.prefix),
            **_sampling_of(self._request, len(prompt)),
        }

    def take(self, choice: dict[str, Any]) -> Delta | None:
        tokens = _list_of(choice.get("token_ids"), int, "token ids")
        if choice.get("text") and not tokens:
            raise ServerError(
                "it sent text without token ids; serve the model with vLLM, or set remote.send to text"
            )
        self._stop_reason = choice.get("stop_reason")
        rated = choice.get("logprobs")
        rates = rated.get("token_logprobs") if isinstance(rated, dict) else rated
        logprobs = _list_of(rates, float | int | None, "log-probabilities")
        if tokens:
            self._num_passes += 1
        if len(logprobs) != len(tokens):
            logprobs = [None] * len(tokens)
        self._output.extend(tokens, [math.nan if logprob is None else logprob for logprob in logprobs])
        return self._output.take_delta()

    def end(self, reason: str) -> Delta | None:
        if reason not in ("length", "stop"):
            raise ServerError(f"it ended the request with finish_reason {reason!r}")
        output = self._output
        if reason == "length":
            output.finish = "length"
        elif isinstance(self._stop_reason, int) and self._stop_reason in self._request.stop_ids:
            # A server may omit the token that it stopped at.
            output.extend([self._stop_reason], [math.nan])
        elif not (len(output.tokens) > self._num_before and output.tokens[-1] in self._boundary_ids):
            # The server ended the text, and omitted the end-of-text token.
            output.extend(self._ending, [math.nan] * len(self._ending))
            output.finish = "eos"
        return output.take_delta()

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        return self._output.result(finish, self.usage, error)


def _list_of(found: Any, kind: type | UnionType, name: str) -> list[Any]:
    """Return a list of a server, empty where it sent none.

    Raises:
        ServerError: it is something else.
    """
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
        raise ServerError(f"it sent {shorten(found, 80)} as {name}")
    return found


def _end_of(tokenizer: HuggingFaceTokenizer) -> list[int]:
    return [] if tokenizer.end_id is None else [tokenizer.end_id]


class _Characters:
    """A vocabulary of single characters, so that text is decoded like tokens."""

    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode("utf-8", "surrogatepass")


class TextCompletion(RemoteCompletion):
    """Prompt and continuation as text, for servers without token ids.

    Text is encoded line by line. Its tokens may differ from those of the model, and their log-probabilities
    are unknown (NaN).
    """

    def __init__(self, request: EngineRequest, tokenizer: HuggingFaceTokenizer, max_context: int) -> None:
        super().__init__(request)
        self._finish: FinishReason | None = None
        self._tokenizer = tokenizer
        self._prompt_text = tokenizer.decode_prompt(self._prompt)
        self._max_tokens = min(request.max_tokens, max_context - len(self._prompt))
        # Limited by the server, as characters are counted here.
        self._text = OutputText(replace(request, max_tokens=sys.maxsize), _Characters())
        self._characters: list[str] = []
        self._line: list[str] = []
        self._tokens: list[int] = []
        self._num_delivered = 0
        self._num_unread = 0

    @property
    def finish(self) -> FinishReason | None:
        return self._finish

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.text

    @property
    def _counts(self) -> tuple[int, int]:
        return len(self._tokens), self._num_unread

    def body(self) -> dict[str, Any]:
        self._encode_line()
        body = {
            "prompt": self._prompt_text + "".join(self._characters),
            "max_tokens": max(1, self._max_tokens - len(self._tokens)),
            **_sampling_of(self._request, len(self._prompt) + len(self._tokens)),
        }
        # It is no field of OpenAI's, so a server without it may refuse it.
        top_k = self._request.sampling.top_k
        return {**body, "top_k": top_k} if top_k else body

    def take(self, choice: dict[str, Any]) -> Delta | None:
        text = choice.get("text") or ""
        if text:
            self._num_passes += 1
        for index, character in enumerate(text):
            if character != "\n" and self._line[-1:] == ["\n"]:
                self._encode_line()
            self._characters.append(character)
            self._line.append(character)
            self._finish = self._text.feed(ord(character))
            if self._finish is not None:
                self._encode_line()
                self._num_unread += len(self._tokenizer.encode(text[index + 1 :]))
                break
        return self._delta()

    def _encode_line(self) -> None:
        self._tokens += self._tokenizer.encode("".join(self._line))
        self._line = []

    def _delta(self) -> Delta | None:
        new = tuple(self._tokens[self._num_delivered :])
        if not self._request.stream or not new:
            return None
        self._num_delivered = len(self._tokens)
        return Delta(new, (math.nan,) * len(new))

    def end(self, reason: str) -> Delta | None:
        if reason not in ("length", "stop"):
            raise ServerError(f"it ended the request with finish_reason {reason!r}")
        self._finish = "length" if reason == "length" else "eos"
        self._encode_line()
        if self._finish == "eos":
            self._tokens += _end_of(self._tokenizer)
        return self._delta()

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        self._encode_line()
        return GenerationResult(
            tokens=tuple(self._tokens),
            text=self._text.text,
            logprobs=(math.nan,) * len(self._tokens),
            finish=finish,
            usage=self.usage,
            num_stop_overlap=self._text.num_stop_overlap,
            error=error,
        )


def tokens_that_end_a_step(tokenizer: HuggingFaceTokenizer, boundary: Boundary) -> frozenset[int]:
    """Return the tokens whose own bytes complete the boundary, as stop tokens for a server.

    Boundaries that straddle two tokens, are protected, or depend on the length of the step are found in the
    stream only.
    """
    delimiter = boundary.delimiter.encode()
    plain = replace(boundary, protected=(), protect_fences=False, protect_json=False)
    found: set[int] = set()
    for token in range(tokenizer.vocab_size):
        own = tokenizer.token_bytes(token)
        may_hold = own.count(b"\n") >= 2 if boundary.delimiter in (AUTO, BLANK_LINE) else delimiter in own
        if may_hold:
            scanner = BoundaryScanner(plain)
            scanner.feed(b"x")
            if scanner.feed(own):
                found.add(token)
    return frozenset(found)


def cache_salt_of(prefix: Prefix) -> dict[str, str]:
    """Return the field that separates owners in vLLM's prefix cache, without their names."""
    if not prefix.owner:
        return {}
    return {"cache_salt": hashlib.sha256(prefix.owner.encode()).hexdigest()}


def _sampling_of(request: EngineRequest, position: int) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if not sampling.greedy:
        body["seed"] = seed_at(sampling, position)
    if request.constraint is not None:
        body["structured_outputs"] = structured_outputs(request.constraint)
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
    return body
