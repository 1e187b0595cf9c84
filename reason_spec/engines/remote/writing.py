"""One generation at a remote server: what to ask for, and what came of it.

A generation may take several requests: one that broke off goes on from what is certain, at another
server, and one that a server ended in the middle of a step goes on too.
"""

from __future__ import annotations

import hashlib
import math
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from reason_spec.engines.base import Delta, EngineRequest, GenerationResult
from reason_spec.engines.grammars import structured_outputs
from reason_spec.engines.output import OutputText, RequestOutput
from reason_spec.engines.remote.servers import ServerError
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.segment import AUTO, BLANK_LINE, Boundary, BoundaryScanner
from reason_spec.speculation.seeds import seed_at
from reason_spec.types import FinishReason, Prefix, Usage


class Writing(ABC):
    """A generation in one of the two languages that servers speak: tokens, or text."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._prompt = request.prefix.to_tuple()
        self._num_passes = 0

    @property
    def usage(self) -> Usage:
        """The work so far; a message with text counts as a pass."""
        return Usage(
            num_prompt_tokens=len(self._prompt),
            num_generated_tokens=self._num_generated,
            num_discarded_tokens=self._num_discarded,
            num_passes=self._num_passes,
        )

    @property
    @abstractmethod
    def finish(self) -> FinishReason | None:
        """Why the generation is over, None while it is not."""

    @property
    @abstractmethod
    def _num_generated(self) -> int: ...

    @property
    @abstractmethod
    def _num_discarded(self) -> int: ...

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the completion request for what is still to be written."""

    @abstractmethod
    def take(self, choice: dict[str, Any]) -> Delta | None:
        """Take one event of the stream; return what can be delivered."""

    @abstractmethod
    def end(self, reason: str) -> Delta | None:
        """Take the server's own reason for ending its request; ``finish`` stays None to go on.

        Called only where ``take`` saw no end. Returns what can be delivered.

        Raises:
            ServerError: the server ended it without having finished.
        """

    @abstractmethod
    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        """Return the result; call it once, at the end."""


class TokenWriting(Writing):
    """Prompt and continuation as token ids: nothing is ever encoded twice."""

    def __init__(
        self,
        request: EngineRequest,
        tokenizer: HuggingFaceTokenizer,
        max_context: int,
        boundary_ids: frozenset[int],
    ) -> None:
        super().__init__(request)
        self._eos_ids = tokenizer.eos_ids
        self._boundary_ids = boundary_ids
        self._written = RequestOutput(request, tokenizer, max_context - len(self._prompt))
        self._stop_reason: object = None

    @property
    def finish(self) -> FinishReason | None:
        return self._written.finish

    @property
    def _num_generated(self) -> int:
        return len(self._written.tokens)

    @property
    def _num_discarded(self) -> int:
        return self._written.num_discarded

    def body(self) -> dict[str, Any]:
        prompt = [*self._prompt, *self._written.tokens]
        return {
            "prompt": prompt,
            "max_tokens": self._written.max_tokens - len(self._written.tokens),
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(self._boundary_ids | self._request.stop_ids),
            # A server may have defaults of its own for all of these.
            "top_k": self._request.sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            **cache_salt_of(self._request.prefix),
            **_sampling_of(self._request, len(prompt)),
        }

    def take(self, choice: dict[str, Any]) -> Delta | None:
        tokens = choice.get("token_ids") or []
        self._stop_reason = choice.get("stop_reason")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if tokens:
            self._num_passes += 1
        if len(logprobs) != len(tokens):
            logprobs = [None] * len(tokens)
        self._written.extend(tokens, [math.nan if logprob is None else logprob for logprob in logprobs])
        return self._written.take_delta()

    def end(self, reason: str) -> Delta | None:
        if reason not in ("length", "stop"):
            raise ServerError(f"it ended the request with finish_reason {reason!r}")
        written = self._written
        if reason == "length":
            written.finish = "length"
        elif isinstance(self._stop_reason, int) and self._stop_reason in self._request.stop_ids:
            # A server may leave out of its ids the one that it stopped at.
            written.extend([self._stop_reason], [math.nan])
        elif not (written.tokens and written.tokens[-1] in self._boundary_ids):
            # The server ended the text by a token of its own, and did not send it.
            ending = sorted(self._eos_ids)[:1]
            written.extend(ending, [math.nan] * len(ending))
            written.finish = "eos"
        return written.take_delta()

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        return self._written.result(finish, self.usage, error)


class _Characters:
    """A vocabulary of single characters, so that text is followed as tokens are."""

    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode("utf-8", "surrogatepass")


class TextWriting(Writing):
    """Prompt and continuation as text: for servers that neither take nor return token ids.

    Text is encoded line by line: its tokens need not be the ones that the model wrote, and their
    log-probabilities are not known (NaN).
    """

    def __init__(self, request: EngineRequest, tokenizer: HuggingFaceTokenizer, max_context: int) -> None:
        super().__init__(request)
        self._finish: FinishReason | None = None
        self._tokenizer = tokenizer
        self._prompt_text = tokenizer.decode_prompt(self._prompt)
        self._max_tokens = min(request.max_tokens, max_context - len(self._prompt))
        # Characters are counted here, and the server counts the tokens.
        self._writer = OutputText(replace(request, max_tokens=sys.maxsize), _Characters())
        self._written: list[str] = []
        self._line: list[str] = []
        self._tokens: list[int] = []
        self._num_delivered = 0
        self._num_unread = 0

    @property
    def finish(self) -> FinishReason | None:
        return self._finish

    @property
    def _num_generated(self) -> int:
        return len(self._tokens)

    @property
    def _num_discarded(self) -> int:
        return self._num_unread

    def body(self) -> dict[str, Any]:
        self._encode_line()
        return {
            "prompt": self._prompt_text + "".join(self._written),
            "max_tokens": max(1, self._max_tokens - len(self._tokens)),
            **_sampling_of(self._request, len(self._prompt) + len(self._tokens)),
        }

    def take(self, choice: dict[str, Any]) -> Delta | None:
        text = choice.get("text") or ""
        if text:
            self._num_passes += 1
        for index, character in enumerate(text):
            if character != "\n" and self._line[-1:] == ["\n"]:
                self._encode_line()
            self._written.append(character)
            self._line.append(character)
            self._finish = self._writer.feed(ord(character))
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
            self._tokens += sorted(self._tokenizer.eos_ids)[:1]
        return self._delta()

    def result(self, finish: FinishReason, error: str | None = None) -> GenerationResult:
        self._encode_line()
        return GenerationResult(
            tokens=tuple(self._tokens),
            text=self._writer.text,
            logprobs=(math.nan,) * len(self._tokens),
            finish=finish,
            usage=self.usage,
            num_stop_overlap=self._writer.num_stop_overlap,
            error=error,
        )


def tokens_that_end_a_step(tokenizer: HuggingFaceTokenizer, boundary: Boundary) -> frozenset[int]:
    """Return the ids whose own bytes complete the boundary: a server can end the request at them.

    A boundary that straddles two tokens, is protected, or depends on how long the step is, is found in the
    stream alone.
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
    """Return what keeps the prefixes of one owner apart in vLLM's cache; owners are not told by name."""
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
