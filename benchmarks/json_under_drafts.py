"""Ask two servers of vLLM, one that drafts and one that does not, for JSON of many schemas, and compare.

    python benchmarks/json_under_drafts.py --plain URL --drafting URL [--number 500]
        [--thinking-budget TOKENS] [--concurrency 8] [--seed 0] [--show 5]

Start both servers with the same model in float32, and with
``--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'``. For
``--thinking-budget`` they also need ``--reasoning-parser``: each answer then thinks before its JSON, for at
most so many tokens. Run it in vLLM's environment.

Each schema is asked for three times, greedily: of the plain server, of the drafting one, and of the drafting
one as a stream. The prompt shows an object with the same keys that breaks the schema, so that drafts from the
prompt break it, too. Each answer must end by itself, parse, satisfy its schema, and equal that of the plain
server, thinking included. The exit status is 1 if one does not, or if no draft was accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_WORDS = ("red", "blue", "Mia", "Omar", "rocks", "stamps", "12", "true", 'a "b"', "é", "x\\y", "", "null")
_KEYS = ("name", "color", "count", "price", "tags", "owner", "is_open", "items", "size", "note")
_PATTERNS = ("^[a-c]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(ab|cd){1,4}$")
_MAX_TOKENS = 400
_LONGEST_STRING = 10


class Case(NamedTuple):
    """A schema, and a prompt that shows an object with its keys and other kinds of values."""

    schema: dict[str, Any]
    prompt: str


class Answer(NamedTuple):
    reasoning: str
    content: str
    finish: str | None


@dataclass
class Report:
    """Failures by kind, each as the number of its case and what came."""

    num_answers: int = 0
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def passed(self) -> bool:
        return not self.failures and self.num_accepted > 0

    def add(self, kind: str, case: int, seen: str) -> None:
        self.failures.setdefault(kind, []).append((case, seen))


def make_cases(number: int, seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [_case(draw) for _ in range(number)]


def _case(draw: random.Random) -> Case:
    schema = _object(draw, depth=draw.randint(0, 2))
    wrong = json.dumps(_wrong(draw, schema), separators=(",", ":"), ensure_ascii=False)
    return Case(schema, f"There are {draw.randint(2, 99)} rocks. Not {wrong}, but JSON.")


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    keys = draw.sample(_KEYS, draw.randint(1, 4))
    return {
        "type": "object",
        "properties": {key: _value(draw, depth) for key in keys},
        "required": keys,
        "additionalProperties": False,
    }


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["enum", "boolean", "null", "string", "number", "pattern", "choice"]
    kind = draw.choice([*kinds, "object", "array"] if depth else kinds)
    if kind == "enum":
        return {"enum": draw.sample(_WORDS, draw.randint(1, 4))}
    if kind == "string":
        return {"type": "string", "minLength": draw.randint(0, 2), "maxLength": _LONGEST_STRING}
    if kind == "number":
        return {"enum": draw.sample(range(-20, 1000), draw.randint(2, 6))}
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    if kind == "choice":
        return {"anyOf": [{"type": "boolean"}, {"enum": draw.sample(_WORDS, 2)}]}
    if kind == "object":
        return _object(draw, depth - 1)
    if kind == "array":
        low = draw.randint(0, 2)
        items = _value(draw, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + draw.randint(0, 3)}
    return {"type": kind}


def _wrong(draw: random.Random, schema: dict[str, Any]) -> Any:
    """Return a value with the keys of the schema, and scalars of random kinds."""
    if schema.get("type") == "object":
        return {key: _wrong(draw, value) for key, value in schema["properties"].items()}
    return draw.choice([*_WORDS, 7, 3.5, True, None, [1, 2]])


async def check(
    plain: str,
    drafting: str,
    cases: Sequence[Case],
    *,
    thinking_budget: int | None = None,
    concurrency: int = 8,
) -> Report:
    """Compare the answers of the servers at these base URLs, which end in ``/v1``."""
    from jsonschema import Draft202012Validator
    from openai import AsyncOpenAI

    report = Report()
    places = asyncio.Semaphore(concurrency)
    before = accepted_drafts(drafting)
    async with (
        AsyncOpenAI(base_url=plain, api_key="none", timeout=600) as one,
        AsyncOpenAI(base_url=drafting, api_key="none", timeout=600) as other,
    ):

        async def compare(number: int, case: Case) -> None:
            async with places:
                expected = await _ask(one, case, thinking_budget, stream=False)
                answers = {"plain": expected}
                for name, stream in (("drafts", False), ("drafts, stream", True)):
                    answers[name] = await _ask(other, case, thinking_budget, stream=stream)
            for name, answer in answers.items():
                report.num_answers += 1
                if answer.finish != "stop":
                    report.add(f"{name}: finish_reason {answer.finish}", number, answer.content)
                elif (problem := _problem(Draft202012Validator(case.schema), answer.content)) is not None:
                    report.add(f"{name}: {problem}", number, answer.content)
                if answer != expected:
                    report.add(f"{name}: differs", number, f"{answer} for {expected}")

        await asyncio.gather(*(compare(number, case) for number, case in enumerate(cases)))
    after = accepted_drafts(drafting)
    report.num_drafted, report.num_accepted = after[0] - before[0], after[1] - before[1]
    return report


def _problem(validator: Any, content: str) -> str | None:
    try:
        value = json.loads(content)
    except json.JSONDecodeError:
        return "no JSON"
    return None if validator.is_valid(value) else "breaks the schema"


async def _ask(client: Any, case: Case, thinking_budget: int | None, *, stream: bool) -> Answer:
    model = (await client.models.list()).data[0].id
    extra: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinking_budget is not None}}
    if thinking_budget is not None:
        # A model may end its answer while it thinks; here it thinks to the end of the budget.
        extra |= {"thinking_token_budget": thinking_budget, "min_tokens": thinking_budget}
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": case.prompt}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": case.schema}},
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "extra_body": extra,
    }
    if not stream:
        choice = (await client.chat.completions.create(**request)).choices[0]
        reasoning = getattr(choice.message, "reasoning", None) or ""
        return Answer(reasoning, choice.message.content or "", choice.finish_reason)
    reasoning = content = ""
    finish: str | None = None
    async for chunk in await client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return Answer(reasoning, content, finish)


def accepted_drafts(url: str) -> tuple[int, int]:
    """Return the draft tokens of a server, and how many were accepted, as vLLM counts them."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as page:
        text = page.read().decode()
    pattern = r"^vllm:spec_decode_num_{}_tokens_total(?:{{.*?}})? ([\d.e+]+)$"
    counts = [re.findall(pattern.format(kind), text, re.MULTILINE) for kind in ("draft", "accepted")]
    drafted, accepted = (sum(map(float, found)) for found in counts)
    return int(drafted), int(accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", required=True, help="base URL of the server without drafts, with /v1")
    parser.add_argument("--drafting", required=True, help="base URL of the server with drafts, with /v1")
    parser.add_argument("--number", type=int, default=500, help="schemas")
    parser.add_argument("--thinking-budget", type=int, help="most tokens of thinking")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="failures to print of each kind")
    args = parser.parse_args()
    report = asyncio.run(
        check(
            args.plain,
            args.drafting,
            make_cases(args.number, args.seed),
            thinking_budget=args.thinking_budget,
            concurrency=args.concurrency,
        )
    )
    accepted = f"{report.num_accepted} of {report.num_drafted} draft tokens accepted"
    lines = [f"{args.number} schemas, {report.num_answers} answers; {accepted}"]
    for kind, failures in sorted(report.failures.items()):
        lines.append(f"{kind}: {len(failures)}")
        lines += [f"  {case}: {seen[:300]}" for case, seen in failures[: args.show]]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
