"""Several servers of one model: work goes where the least is, and answers are those of a single process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.run import run
from reason_spec.evaluation.store import read_outcomes
from reason_spec.pair import embedded_path
from reason_spec.settings import load_settings
from tests.engines.upstream import Fault, Upstream
from tests.engines.upstream import serving as serving_upstream
from tests.evaluation.problems import Sum
from tests.server.processes import PATIENCE_SECONDS, command, environment, serving

SUMS = tuple(Sum(number) for number in range(12))


def make_upstream() -> Upstream:
    """A server of the embedded target's tokens that knows the answers to the sums."""
    tokenizer = load_tokenizer(str(embedded_path("target")))
    answers = {item.question: item.answer() for item in SUMS}

    def continuation(tokens: Sequence[int]) -> Sequence[int]:
        text = tokenizer.decode_prompt(tokens)
        found = next((question for question in answers if question in text), None)
        if found is None:
            return tuple(tokenizer.eos_ids)
        answer = answers[found]
        written = text.partition(found)[2]
        start = max((size for size in range(len(answer) + 1) if written.endswith(answer[:size])), default=0)
        return (*tokenizer.encode(answer[start:]), *tokenizer.eos_ids)

    return Upstream(continuation, tokenizer.decode, tokenizer.encode_prompt, seconds_per_chunk=0.002)


async def answers_of(upstreams: Sequence[Upstream], concurrency: int) -> dict[str, Outcome]:
    settings = load_settings(
        flags={
            "target.kind": "remote",
            "target.remote.base_urls": tuple(upstream.url for upstream in upstreams),
        }
    )
    problems = [item.problem() for item in SUMS]
    async with Accelerator.from_settings(settings, strategies=("autoregressive",)) as accelerator:
        running = run(accelerator, problems, ["autoregressive"], concurrency=concurrency)
        results = [result async for result in running]
    assert all(isinstance(result, Outcome) for result in results)
    return {result.id: result for result in results if isinstance(result, Outcome)}


async def test_each_server_has_its_share_of_what_is_under_way_and_answers_stay_the_same() -> None:
    with ExitStack() as stack:
        alone, first, second, third = (
            stack.enter_context(serving_upstream(make_upstream())) for _ in range(4)
        )
        expected = await answers_of([alone], concurrency=1)
        together = await answers_of([first, second, third], concurrency=6)
    assert [item.response for item in expected.values()] == [item.answer() for item in SUMS]
    assert together.keys() == expected.keys()
    for name, outcome in together.items():
        assert outcome.token_ids == expected[name].token_ids
    # Two batches of six: never more than two requests at one server, and none of them idle.
    for upstream in (first, second, third):
        assert upstream.most_live == 2
        assert 2 <= len({str(body["prompt"][:60]) for body in upstream.streams}) <= 6


async def test_a_server_in_trouble_costs_no_answer() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving_upstream(make_upstream())) for _ in range(2))
        first.faults = [Fault("break", after=3), Fault("status"), Fault("break")]
        together = await answers_of([first, second], concurrency=4)
    assert [together[f"p{item.number}"].response for item in SUMS] == [item.answer() for item in SUMS]


@pytest.mark.slow
def test_two_servers_answer_as_a_single_process_does(tmp_path: Path) -> None:
    """The embedded target behind two servers of this project, greedily, against the target in process."""
    asked = ["eval", "--generate", "5", "--compare", "autoregressive", "--concurrency", "4", "--quiet"]
    with ExitStack() as stack:
        urls = []
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            options = ("--strategy", "autoregressive", "--set", "suffix.use=none")
            server = stack.enter_context(serving(*options, cwd=folder))
            urls += ["--target-url", f"{server.url}/v1"]
        for extra, output in ((urls, "served"), ([], "alone")):
            done = subprocess.run(
                command(*asked, *extra, "--output", output), cwd=tmp_path, env=environment(), text=True,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        logs = [tmp_path / name / "log.jsonl" for name in ("first", "second")]
        completed = [log.read_text().count('"path": "/v1/completions"') for log in logs]
    assert min(completed) >= 2
    served, alone = (
        {item.id: item for item in read_outcomes(tmp_path / name / "results.jsonl")}
        for name in ("served", "alone")
    )
    assert len(served) == 5
    for name, outcome in alone.items():
        assert served[name].token_ids == outcome.token_ids
        assert served[name].response == outcome.response
        assert served[name].correct is outcome.correct
