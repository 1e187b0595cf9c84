from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from reason_spec.errors import DataError, SettingsError
from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.exact import ExactVerifier
from reason_spec.verifiers.numbers import NumbersVerifier
from reason_spec.verifiers.pairs import verify_file


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_fields_and_order_are_kept_and_verdicts_added(tmp_path: Path) -> None:
    rows = [
        {"id": i, "a": f"{i} + 1 = {i + 1}", "b": f"$ {i}+1={i + 1 + i % 2} $", "é": [i]} for i in range(150)
    ]
    summary = asyncio.run(
        verify_file(write(tmp_path / "in.jsonl", *rows), tmp_path / "new" / "out.jsonl", NumbersVerifier(60))
    )
    out = read(tmp_path / "new" / "out.jsonl")
    assert [{key: row[key] for key in rows[0]} for row in out] == rows
    assert [row["verdict"] for row in out] == ["accept", "reject"] * 75
    assert all(0 <= row["score"] <= 1 for row in out)  # type: ignore[operator]
    assert summary.num_pairs == 150
    assert summary.decisions == {"accept": 75, "reject": 75}


def test_the_time_of_pairs_that_are_judged_at_once_counts_once(tmp_path: Path) -> None:
    class Slow(Verifier):
        name = "slow"
        loss_class: LossClass = "verified"

        async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
            await asyncio.sleep(0.1)
            return Verdict("accept")

    source = write(tmp_path / "in.jsonl", *[{"a": "a", "b": "b"}] * 16)
    summary = asyncio.run(verify_file(source, tmp_path / "out.jsonl", Slow()))
    assert 0.1 <= summary.seconds < 1.2, "one after another they take 1.6 s"


def test_the_context_is_what_steps_may_restate(tmp_path: Path) -> None:
    pair = {"a": "Ana has 47, so Ben has 55.", "b": "So Ben has 55."}
    source = write(tmp_path / "in.jsonl", pair, pair | {"context": "Ana has 47."}, pair | {"context": None})
    asyncio.run(verify_file(source, tmp_path / "out.jsonl", NumbersVerifier(60)))
    reasons = [row["verdict_reason"] for row in read(tmp_path / "out.jsonl")]
    assert reasons[0] != reasons[1]
    assert reasons[0] == reasons[2]


def test_gzip_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(b'\xef\xbb\xbf{"a": "x", "b": "x"}\n\n{"a": "x", "b": "y"}\n'))
    asyncio.run(verify_file(source, tmp_path / "out.jsonl", ExactVerifier()))
    assert [row["verdict"] for row in read(tmp_path / "out.jsonl")] == ["accept", "reject"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"a": "x"}\n', "line 2.*'b' is missing"),
        ('{"a": "x", "b": 5}\n', "line 2.*'b' is not text: 5"),
        ('{"a": "x", "b": null}\n', "line 2.*'b' is missing or null"),
        ('{"a": "x", "b": "y", "context": 3}\n', "line 2.*'context' is not text: 3"),
        ("[1, 2]\n", "line 2.*not a JSON object"),
        ("{broken\n", "line 2.*not valid JSON"),
        ("[" * 100_000 + "\n", "line 2.*not usable JSON"),
    ],
)
def test_a_bad_line_names_file_line_field_and_can_be_skipped(
    tmp_path: Path, line: str, complaint: str
) -> None:
    good = {"a": "x", "b": "x"}
    source = write(tmp_path / "in.jsonl", good, line, good)
    with pytest.raises(DataError, match=complaint) as caught:
        asyncio.run(verify_file(source, tmp_path / "out.jsonl", ExactVerifier()))
    assert str(source) in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()
    summary = asyncio.run(verify_file(source, tmp_path / "out.jsonl", ExactVerifier(), skip_bad=True))
    assert (summary.num_pairs, summary.num_skipped_lines) == (2, 1)


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"a": "\xff", "b": "x"}\n')
    with pytest.raises(DataError, match="line 1: is not UTF-8"):
        asyncio.run(verify_file(source, tmp_path / "out.jsonl", ExactVerifier()))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        asyncio.run(verify_file(tmp_path / "none.jsonl", tmp_path / "out.jsonl", ExactVerifier()))
    with pytest.raises(DataError, match="is a folder"):
        asyncio.run(verify_file(tmp_path, tmp_path / "out.jsonl", ExactVerifier()))
    (tmp_path / "in.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="not a gzip file"):
        asyncio.run(verify_file(tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl", ExactVerifier()))
    good = write(tmp_path / "in.jsonl", {"a": "x", "b": "x"})
    with pytest.raises(DataError, match="cannot be written"):
        asyncio.run(verify_file(good, good / "below" / "out.jsonl", ExactVerifier()))


def test_an_earlier_output_survives_a_failure(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"a": "x"})
    output = write(tmp_path / "out.jsonl", {"old": True})
    with pytest.raises(DataError):
        asyncio.run(verify_file(source, output, ExactVerifier()))
    assert read(output) == [{"old": True}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_verifier_without_a_second_step_is_refused(tmp_path: Path) -> None:
    class Alone(Verifier):
        name = "alone"
        loss_class: LossClass = "routed"
        judges_draft_only, compares = True, False

        async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
            return Verdict("accept")

    source = write(tmp_path / "in.jsonl", {"a": "x", "b": "x"})
    with pytest.raises(SettingsError, match="'alone'"):
        asyncio.run(verify_file(source, tmp_path / "out.jsonl", Alone()))
