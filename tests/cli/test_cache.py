"""`reason-spec cache`: learning past conversations, and what is shown and erased of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.weights import identify_model
from reason_spec.pair import embedded_path
from reason_spec.settings import load_settings
from reason_spec.suffix.documents import make_document
from reason_spec.suffix.store import SuffixStore, files_of_tenant
from reason_spec.suffix.tenant_file import StoreKey
from tests.cli_runner import fail, invoke, succeed

SECRET = "Zanzibar"
TRACES = [
    [
        {"role": "user", "content": f"Ann has {n} apples and Bob has 4. How many in {SECRET}?"},
        {"role": "assistant", "content": f"Ann has {n}.\n\nBob has 4.\n\nThe answer is {n + 4}."},
    ]
    for n in range(6)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in TRACES))
    return tmp_path / "cache"


def embedded_key() -> StoreKey:
    tokenizer = load_tokenizer(str(embedded_path("target")))
    return StoreKey(identify_model("target", load_settings().target), tokenizer.tokenizer_id)


def keep(folder: Path, tenant: str, *tokens: int, key: StoreKey | None = None) -> None:
    document = make_document([("prompt", [5, 6]), ("output", tokens)], last_used=1e9, usefulness=2.0)
    SuffixStore(folder, key or embedded_key(), max_bytes=1 << 20).save(tenant, [document])


def as_json(*arguments: str) -> dict[str, Any]:
    record = json.loads(succeed("cache", *arguments, "--json").stdout)
    assert isinstance(record, dict)
    return record


def text_of(folder: Path, tenant: str) -> str:
    tokenizer = load_tokenizer(str(embedded_path("target")))
    documents = SuffixStore(folder, embedded_key(), max_bytes=1 << 20).load(tenant)
    return "\n".join(tokenizer.decode_prompt(document.tokens.tolist()) for document in documents)


# Import --------------------------------------------------------------------------------------


def test_import_learns_conversations_that_the_cache_then_holds(folder: Path) -> None:
    record = as_json("import", "traces.jsonl", "--path", "cache", "--tenant", "ann")
    assert (record["num_conversations"], record["num_answers"]) == (6, 6)
    assert record["num_answer_tokens"] > 60
    assert record["kept"]["num_tokens"] > 100
    learned = text_of(folder, "ann")
    assert "The answer is 7." in learned
    assert "<|im_start|>assistant\n" in learned
    (file,) = as_json("stats", "--path", "cache")["files"]
    assert file["tenant"] == "ann"
    assert file["tokens_by_source"]["output"] > 0
    assert file["tokens_by_source"]["prompt"] > 0
    assert file["tokens_by_source"]["tool"] == 0
    assert file["num_tokens"] == sum(file["tokens_by_source"].values())


def test_import_adds_to_what_is_there(folder: Path) -> None:
    succeed("cache", "import", "traces.jsonl", "--path", "cache")
    more = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "7 8 9 7 8 9 is done."}]
    Path("more.jsonl").write_text(json.dumps(more) + "\n")
    said = succeed("cache", "import", "more.jsonl", "--path", "cache").stdout
    assert said.startswith("Learned 1 conversation with 1 answer of ")
    learned = text_of(folder, "default")
    assert "7 8 9 7 8 9 is done." in learned
    assert "The answer is 9." in learned


def test_bad_lines_are_named_or_left_out(folder: Path) -> None:
    with Path("traces.jsonl").open("a") as file:
        file.write('{"messages": [{"role": "robot"}]}\n')
    said = fail("cache", "import", "traces.jsonl", "--path", "cache")
    assert "traces.jsonl, line 7: field 'messages.0.role'" in said
    assert "--skip-bad" in said
    assert not folder.exists()
    result = succeed("cache", "import", "traces.jsonl", "--path", "cache", "--skip-bad")
    assert "left out: traces.jsonl, line 7" in " ".join(result.stderr.split())
    assert "6 conversations" in result.stdout


def test_nothing_of_what_was_said_is_printed_or_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    results = [
        succeed("cache", "import", "traces.jsonl", "--path", "cache"),
        succeed("cache", "stats", "--path", "cache"),
        succeed("cache", "erase", "--path", "cache", "--tenant", "default", "--yes"),
    ]
    assert SECRET not in caplog.text
    assert all(SECRET not in result.output for result in results)


def test_import_needs_a_vocabulary_and_a_folder(folder: Path) -> None:
    assert "give --path, or set suffix.path" in fail("cache", "import", "traces.jsonl")
    scripted = ["cache", "import", "traces.jsonl", "--path", "cache", "--set", "target.kind=scripted"]
    assert "scripted target has no fixed vocabulary" in fail(*scripted)
    assert "there is no such file" in fail("cache", "import", "none.jsonl", "--path", "cache")


# Stats ---------------------------------------------------------------------------------------


def test_stats_show_a_row_for_each_tenant_and_name_damaged_files(folder: Path) -> None:
    keep(folder, "ann", 7, 8, 9)
    keep(folder, "bob", 7)
    shown = succeed("cache", "stats", "--path", "cache").stdout
    assert "ann" in shown
    assert "bob" in shown
    assert "d ago" in shown
    assert "model" not in shown
    (file,) = files_of_tenant(folder, "bob")
    file.write_bytes(b"rubbish")
    result = succeed("cache", "stats", "--path", "cache")
    assert "bob" not in result.stdout
    assert file.name in result.stderr.replace("\n", "")
    keep(folder, "ann", 7, key=StoreKey("another model", "0000"))
    assert "another model, 0000" in succeed("cache", "stats", "--path", "cache").stdout


def test_stats_of_one_tenant_an_empty_folder_and_none(folder: Path) -> None:
    keep(folder, "ann", 7)
    keep(folder, "bob", 7)
    (file,) = as_json("stats", "--path", "cache", "--tenant", "ann")["files"]
    assert file["tenant"] == "ann"
    assert "did you mean 'ann'" in fail("cache", "stats", "--path", "cache", "--tenant", "anne")
    Path("empty").mkdir()
    assert "holds no texts" in succeed("cache", "stats", "--path", "empty").stdout
    assert "cannot be read as a folder" in fail("cache", "stats", "--path", "missing")


def test_the_folder_and_tenant_of_the_settings_are_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(folder, "ann", 7)
    monkeypatch.setenv("REASON_SPEC_SUFFIX__PATH", "cache")
    assert as_json("stats")["files"][0]["tenant"] == "ann"


# Erase ---------------------------------------------------------------------------------------


def test_erase_asks_first_and_removes_one_tenant(folder: Path) -> None:
    keep(folder, "ann", 7)
    keep(folder, "bob", 7)
    arguments = ["cache", "erase", "--path", "cache", "--tenant", "ann"]
    refused = invoke(*arguments, stdin="n\n")
    assert refused.exit_code == 1
    assert "Remove" in refused.stderr
    assert invoke(*arguments, stdin="").exit_code == 1
    assert files_of_tenant(folder, "ann")
    assert "Removed 1 file of" in succeed(*arguments, stdin="y\n").stdout
    assert not files_of_tenant(folder, "ann")
    assert files_of_tenant(folder, "bob")
    assert "holds nothing of tenant 'ann'" in fail(*arguments, "--yes")
    record = as_json("erase", "--path", "cache", "--tenant", "bob", "--yes")
    assert len(record["files"]) == 1


def test_erase_takes_files_set_aside_and_half_written_too(folder: Path) -> None:
    keep(folder, "ann", 7)
    (file,) = files_of_tenant(folder, "ann")
    file.with_name(f"{file.name}.damaged-1").write_bytes(b"rubbish")
    file.with_name(f".{file.name}.tmp").write_bytes(b"half")
    succeed("cache", "erase", "--path", "cache", "--tenant", "ann", "--yes", "--quiet")
    assert files_of_tenant(folder, "ann") == []


def test_erase_needs_the_tenants_name(folder: Path) -> None:
    keep(folder, "default", 7)
    assert invoke("cache", "erase", "--path", "cache", "--yes").exit_code == 2
    assert files_of_tenant(folder, "default")
