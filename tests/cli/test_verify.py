"""`reason-spec verify`: pairs of steps and their verdicts."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli_runner import fail, succeed


def test_verify_adds_verdict_and_score_in_order(tmp_path: Path) -> None:
    pairs = [
        ("3 + 4 = 7.", "4 + 3 is 7."),
        ("3 + 4 = 7.", "3 + 4 = 8."),
        ("It has 0.5 kg.", "It has 1/2 kg."),
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b, "context": "Sums."}) + "\n" for a, b in pairs))
    out = tmp_path / "out.jsonl"
    arguments = ["verify", str(path), "--verifier", "numbers", "--output", str(out)]
    result = succeed(*arguments)
    assert result.stdout.startswith("3 pairs: ")
    judged = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["a"], record["b"]) for record in judged] == pairs
    assert judged[1]["verdict"] == "reject"
    assert all("score" in record for record in judged)
    assert json.loads(succeed(*arguments, "--json").stdout)["num_pairs"] == 3


def test_the_embedded_judge_verifies_pairs_too(tmp_path: Path) -> None:
    own = "Adding 8 to those of Ana: 47+8: 7+8=15 carry 1,4+1=5. Ben has 55 cards."
    reworded = "We go 8 above Ana: 47+8: 7+8=15 carry 1,4+1=5. So Ben has 55 cards."
    other = "Taking 8 from those of Ana: 47-8: 7-8 borrow,17-8=9,4-1=3. Ben has 39 cards."
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"a": text, "b": own}) + "\n" for text in (reworded, other)))
    out = tmp_path / "out.jsonl"
    succeed("verify", str(path), "--verifier", "judge", "--output", str(out))
    verdicts = [json.loads(line)["verdict"] for line in out.read_text().splitlines()]
    assert verdicts == ["accept", "unknown"]


def test_a_verifier_that_judges_alone_verifies_no_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"a": "x", "b": "y"}) + "\n")
    for name in ("likelihood", "utility", "reward"):
        assert name in fail("verify", str(path), "--verifier", name, "--output", str(tmp_path / "out.jsonl"))


def test_verify_names_bad_lines_or_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "1", "b": "1"}\n{"a": "1"}\n')
    arguments = ["verify", str(path), "--verifier", "exact", "--output", str(tmp_path / "out.jsonl")]
    assert "line 2: field 'b' is missing" in fail(*arguments)
    assert "1 unusable line left out" in succeed(*arguments, "--skip-bad").stdout
    assert "did you mean 'exact'" in fail(*arguments[:-4], "--verifier", "exakt", "--output", "x")
