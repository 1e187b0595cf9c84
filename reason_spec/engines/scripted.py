"""An engine without a model, for tests and demonstrations: a script gives the text.

It has a step loop like the others. Live requests share passes; a pass yields one token for each request, and
more where drafts are accepted; cancellation takes effect between passes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from reason_spec.engines.base import Engine
from reason_spec.engines.chat_template import PLAIN_CHAT, ChatOptions, Message
from reason_spec.engines.constraints import BackgroundCompiler, TextMatcher, find_break
from reason_spec.engines.generation import EngineRequest, Generation, Hint, Score
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.script import OPEN_THINKING, Script
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.text_updates import TextUpdate, apply_update
from reason_spec.errors import EngineError, ReasonSpecError
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.base import num_shared
from reason_spec.types import Constraint, FinishReason, Prefix, Sampling, Usage

END_OF_TEXT = 0
DEFAULT_PATTERN = r"\n+| ?[^\W\d_]+|\d| ?[^\w\s]|\s|."


class ScriptedTokenizer:
    """Tokens are the matches of a pattern; their ids are hashes of their text.

    Tokenizers with the same pattern have the same ids in every process, so their tokens may be exchanged.
    A conversation has one line or more for each message. With ``thinking`` it ends with an open ``<think>``,
    unless ``enable_thinking`` is false.
    """

    _vocabularies: ClassVar[dict[str, dict[int, str]]] = {}

    def __init__(self, pattern: str = DEFAULT_PATTERN, *, thinking: bool = False) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)
        self._thinking = thinking
        self._pieces = self._vocabularies.setdefault(pattern, {END_OF_TEXT: ""})
        self.tokenizer_id = hashlib.sha256(pattern.encode()).hexdigest()[:16]
        self.eos_ids = frozenset({END_OF_TEXT})
        self.end_id = END_OF_TEXT

    @property
    def chat_template(self) -> str | None:
        return None

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._id_of(piece) for piece in self._pattern.findall(text))

    def _id_of(self, piece: str) -> int:
        number = int.from_bytes(hashlib.sha256(piece.encode()).digest()[:4], "big") >> 1
        assert self._pieces.setdefault(number, piece) == piece, "two pieces of text have one number"
        return number

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in tokens)

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        return self.decode(tokens)

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token].encode()

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        return self.encode(text)

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        text = "".join(f"{message['role']}: {_text_of(message)}\n" for message in messages)
        if options.continue_final:
            return self.encode(text.removesuffix("\n"))
        thinks = self._thinking and options.arguments.get("enable_thinking", True)
        return self.encode(text + OPEN_THINKING if thinks else text)

    def encode_turn(self, question: str) -> tuple[int, ...]:
        return self.encode(f"\nuser: {question}\n")


@dataclass(eq=False, slots=True)
class _Running:
    """One generation, and the text that the script has for it."""

    generation: Generation
    continuation: tuple[int, ...]
    output: RequestOutput
    hint: Hint
    usage: Usage
    cancelled: bool = False

    @property
    def drafts(self) -> tuple[int, ...]:
        """The rest of the hint, if the tokens so far agree with it."""
        tokens, hint = self.output.tokens, self.hint
        num_checked = len(tokens) - hint.start
        if num_checked < 0 or hint.tokens[:num_checked] != tuple(tokens[hint.start :]):
            return ()
        return hint.tokens[num_checked:][: self.generation.request.num_draft_tokens]


class ScriptedEngine(Engine):
    """Generates the text of its script, one pass after another.

    A generation whose text breaks its constraint fails. ``logit_bias`` is ignored.

    Args:
        script: returns the rest of the text for any beginning of it, prompt included.
        seconds_per_pass: the time of a pass, or T(n), the time of one with n tokens.
        fail_after: number of passes after which every request fails, for tests of failures.
        earlier: earlier texts to draft from where no hint applies.
    """

    has_costs: ClassVar[bool] = False
    takes_constraints = True

    def __init__(
        self,
        name: str,
        script: Script,
        *,
        tokenizer: ScriptedTokenizer | None = None,
        seconds_per_pass: float | Callable[[int], float] = 0.0,
        max_context: int = 1 << 20,
        fail_after: int | None = None,
        earlier: EarlierTexts | None = None,
    ) -> None:
        self.name = name
        self._script = script
        self._tokenizer = tokenizer or ScriptedTokenizer()
        self._seconds_per_pass = seconds_per_pass
        self._max_context = max_context
        self._fail_after = fail_after
        self._earlier = earlier
        self._constraints = BackgroundCompiler.of_bytes()
        self._running: list[_Running] = []
        self._awake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._num_passes = 0
        self._usage = Usage()

    @property
    def tokenizer(self) -> ScriptedTokenizer:
        return self._tokenizer

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def takes_texts(self) -> bool:
        return self._earlier is not None

    def update_text(self, update: TextUpdate) -> None:
        if self._earlier is not None:
            apply_update(self._earlier, update)

    async def start(self) -> None:
        if self._loop_task is None:
            self._loop_task = asyncio.get_running_loop().create_task(self._step_loop())

    async def close(self) -> None:
        self._constraints.close()
        for running in list(self._running):
            self._retire(running, "cancelled")
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
            self._loop_task = None

    def submit(self, request: EngineRequest) -> Generation:
        running: _Running

        def cancel() -> None:
            running.cancelled = True

        def take_hint(hint: Hint) -> None:
            running.hint = hint

        prefix = request.prefix.to_tuple()
        error = None
        try:
            rest = self._script(self._tokenizer.decode(prefix), request.sampling)
            if request.constraint is not None:
                _check_text(rest, self._constraints.start(request.constraint).result())
            continuation = (*self._tokenizer.encode(rest), END_OF_TEXT)
        except ReasonSpecError as failure:
            continuation, error = (), str(failure)
        if len(prefix) >= self._max_context:
            error = f"the prefix of {len(prefix)} tokens fills the context"
        running = _Running(
            Generation(request, on_cancel=cancel, on_hint=take_hint),
            continuation,
            RequestOutput(request, self._tokenizer, self._max_context - len(prefix)),
            Hint(request.hint),
            Usage(num_prompt_tokens=len(prefix)),
        )
        if error is not None:
            self._retire(running, "failed", error)
        else:
            self._running.append(running)
            self._awake.set()
        return running.generation

    async def check_constraint(self, constraint: Constraint) -> None:
        await self._constraints.check(constraint)

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        """Return 0.0 for each token as long as the script agrees, then minus infinity."""
        await asyncio.sleep(self._pass_seconds(len(continuation)))
        self._num_passes += 1
        text = self._tokenizer.decode(prefix.to_tuple())
        expected = (*self._tokenizer.encode(self._script(text, Sampling())), END_OF_TEXT)
        agreed = num_shared(expected, continuation)
        logprobs = tuple(0.0 if index < agreed else float("-inf") for index in range(len(continuation)))
        best = (*expected, *[END_OF_TEXT] * len(continuation))[: len(continuation)]
        return Score(logprobs, best, Usage(num_passes=1, num_scored_tokens=len(continuation)))

    async def stats(self) -> EngineStats:
        return EngineStats(len(self._running), 0, 0, self._num_passes, 0.0, self._usage)

    async def reset_prefix_cache(self) -> None:
        """Do nothing: there is no cache."""

    async def _step_loop(self) -> None:
        while True:
            for running in [running for running in self._running if running.cancelled]:
                self._retire(running, "cancelled")
            if not self._running:
                self._awake.clear()
                await self._awake.wait()
                continue
            batch = [(running, self._drafts(running)) for running in self._running]
            await asyncio.sleep(self._pass_seconds(sum(1 + len(drafts) for _, drafts in batch)))
            self._num_passes += 1
            for running, drafts in batch:
                if self._fail_after is not None and self._num_passes > self._fail_after:
                    self._retire(running, "failed", f"{self.name}: scripted failure")
                elif not running.cancelled:
                    self._advance(running, drafts)

    def _pass_seconds(self, num_tokens: int) -> float:
        seconds = self._seconds_per_pass
        return seconds(num_tokens) if callable(seconds) else seconds

    def _drafts(self, running: _Running) -> tuple[int, ...]:
        return running.drafts or self._drafts_from_earlier(running)

    def _advance(self, running: _Running, drafts: tuple[int, ...]) -> None:
        output = running.output
        rest = running.continuation[len(output.tokens) :]
        accepted = num_shared(rest, drafts)
        running.usage += Usage(
            num_passes=1,
            num_drafted_tokens=len(drafts),
            num_accepted_draft_tokens=accepted,
            num_rejections=int(accepted < len(drafts)),
            acceptance_histogram=(0,) * accepted + (1,) if drafts else (),
        )
        generated = rest[: accepted + 1]
        output.extend(generated, (0.0,) * len(generated))
        if (delta := output.take_delta()) is not None:
            running.generation.push(delta)
        if output.finish is not None:
            self._retire(running, output.finish)

    def _drafts_from_earlier(self, running: _Running) -> tuple[int, ...]:
        request = running.generation.request
        if self._earlier is None or request.text is None:
            return ()
        text = (*request.prefix.to_tuple(), *running.output.tokens)
        budget, final = request.num_draft_tokens, request.is_final
        return self._earlier.propose(request.text, text, budget, tree=False, final=final).tokens

    def _retire(self, running: _Running, finish: FinishReason, error: str | None = None) -> None:
        if running in self._running:
            self._running.remove(running)
        usage = replace(running.usage, num_generated_tokens=len(running.output.tokens))
        self._usage += usage
        running.generation.finish(running.output.result(finish, usage, error))


def _check_text(text: str, matcher: TextMatcher) -> None:
    """Raise EngineError where a text breaks a constraint, or ends before it is fulfilled."""
    if broken := find_break(text, matcher):
        raise EngineError(f"the script's text is not what the constraint asks for: {broken}")


def _text_of(message: Message) -> str:
    """Return the text of a message, with its calls in the form that most models use."""
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
    return (message["content"] or "") + "".join(f"<tool_call>{call}</tool_call>" for call in calls)
