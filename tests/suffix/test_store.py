"""Texts on disk: what is saved comes back, or nothing does; processes and tenants do not harm each other."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reason_spec.errors import DataError
from reason_spec.suffix.documents import Document, bounded, content_ids, make_document, merge
from reason_spec.suffix.store import (
    erase,
    files_of_tenant,
    list_files,
    tenants_of,
)
from reason_spec.suffix.tenant_file import StoreKey
from tests.full_disk import full_beyond
from tests.suffix.some_documents import (
    KEY,
    any_documents,
    assert_equal,
    contents,
    documents_of,
    num_tokens,
    one,
    open_store,
    random_documents,
    the_file,
)

ROOT = Path(__file__).parents[2]
OTHER_KEY = StoreKey("sha256 def", "fedcba9876543210")


# What is saved comes back --------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=any_documents, tenant=st.text(min_size=1, max_size=20))
def test_what_is_saved_is_what_another_process_loads(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document], tenant: str
) -> None:
    folder = tmp_path_factory.mktemp("store")
    report = open_store(folder).save(tenant, documents)
    assert_equal(open_store(folder).load(tenant), documents)
    assert (report.num_documents, report.num_tokens) == (len(documents), num_tokens(documents))
    assert report.num_bytes == the_file(folder, tenant).stat().st_size
    assert tenants_of(folder) == [tenant]


def test_nothing_is_loaded_where_nothing_was_saved_and_nothing_is_written(folder: Path) -> None:
    assert_equal(open_store(folder).load("a"), [])
    assert not folder.exists()


def test_a_save_replaces_what_the_same_process_saved(folder: Path) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1, 2], [3]))
    store.save("a", documents_of([3], [4]))
    assert contents(open_store(folder).load("a")) == {(3,), (4,)}


def test_a_million_tokens_take_well_under_two_seconds_each_way(folder: Path) -> None:
    documents = random_documents(1_000_000, 5000)
    start = time.process_time()
    open_store(folder).save("a", documents)
    saved = time.process_time()
    loaded = open_store(folder).load("a")
    assert time.process_time() - saved < 2
    assert saved - start < 2
    assert_equal(loaded, documents)


def test_folder_and_files_are_their_owners_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        open_store(folder).save("a", documents_of([1]))
        erase(folder, "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_names_of_tenants_are_never_paths(folder: Path) -> None:
    names = ["../../up", "/root", "a/b", "..", "\0", "x" * 300, "Ä€", "con", "a", "A", "a "]
    store = open_store(folder)
    for number, name in enumerate(names):
        store.save(name, documents_of([number]))
    assert tenants_of(folder) == sorted(names)
    for number, name in enumerate(names):
        assert contents(open_store(folder).load(name)) == {(number,)}
    assert [place.name for place in folder.parent.iterdir()] == [folder.name]
    with pytest.raises(DataError, match="1 to 1024"):
        store.save("x" * 1025, [])


# The bound -----------------------------------------------------------------------------------


def test_the_file_keeps_to_the_bound_and_the_oldest_go_first(folder: Path) -> None:
    documents = [one([n] * 100, last_used=1000.0 * (7 * n % 50)) for n in range(50)]
    report = open_store(folder, max_bytes=8000).save("a", documents)
    assert the_file(folder).stat().st_size <= 8000
    assert 10 < report.num_documents < 20
    assert report.num_documents_left_out == 50 - report.num_documents
    kept = sorted(document.last_used for document in open_store(folder).load("a"))
    assert kept == sorted(document.last_used for document in documents)[-len(kept) :]


def test_of_documents_of_one_age_the_useful_ones_stay() -> None:
    documents = [make_document([("output", [n] * 10)], last_used=5.0, usefulness=n) for n in range(10)]
    newest = make_document([("output", [10] * 10)], last_used=9.0)
    kept = bounded([*documents, newest], sum(document.num_bytes for document in documents[:4]))
    assert [document.usefulness for document in kept] == [7, 8, 9, 0]


@given(documents=any_documents, max_bytes=st.integers(0, 600))
def test_bounding_keeps_documents_and_their_order(documents: list[Document], max_bytes: int) -> None:
    kept = bounded(documents, max_bytes)
    assert sum(document.num_bytes for document in kept) <= max_bytes
    remaining = iter(document.content_id for document in documents)
    assert all(document.content_id in remaining for document in kept)


# Several processes ---------------------------------------------------------------------------


def test_what_another_process_saved_since_is_kept(folder: Path) -> None:
    open_store(folder).save("a", documents_of([1], [2]))
    first, second = open_store(folder), open_store(folder)
    first.load("a")
    second.load("a")
    first.save("a", documents_of([1], [3]))
    second.save("a", documents_of([1], [2], [4]))
    assert contents(open_store(folder).load("a")) >= {(1,), (3,), (4,)}


def test_a_document_that_was_evicted_does_not_come_back_by_itself(folder: Path) -> None:
    store, other = open_store(folder), open_store(folder)
    store.save("a", documents_of([1], [2]))
    other.load("a")
    other.save("a", documents_of([1], [2], [5]))
    store.save("a", documents_of([2]))
    assert contents(open_store(folder).load("a")) == {(2,), (5,)}


@given(ours=any_documents, theirs=any_documents)
@settings(deadline=None)
def test_merging_loses_nothing_and_is_done_once(ours: list[Document], theirs: list[Document]) -> None:
    merged = merge(ours, theirs)
    last_used = [document.last_used for document in merged]
    assert last_used == sorted(last_used)
    assert contents(merged) == contents(ours) | contents(theirs)
    assert num_tokens(merged) <= num_tokens(ours) + num_tokens(theirs)
    again = merge(merged, theirs)
    assert content_ids(again) == content_ids(merged)
    assert num_tokens(again) == num_tokens(merged)


def test_how_often_a_short_answer_was_given_is_kept() -> None:
    ours = documents_of([1, 2], [1, 2], [1])
    theirs = documents_of([1, 2], [3], [3])
    tokens = sorted(document.tokens.tolist() for document in merge(ours, theirs))
    assert tokens == [[1], [1, 2], [1, 2], [3], [3]]


def test_the_beginning_of_a_longer_conversation_is_left_out_and_its_use_kept() -> None:
    half, whole = list(range(64)), list(range(70))
    old = [make_document([("output", half)], last_used=1.0, usefulness=9.0), one([5])]
    new = [make_document([("output", whole)], last_used=5.0, usefulness=2.0)]
    for merged in (merge(old, new), merge(new, old)):
        short, document = merged
        assert short.tokens.tolist() == [5]
        assert document.tokens.tolist() == whole
        assert (document.last_used, document.usefulness) == (5.0, 9.0)


def test_equal_tokens_of_other_sources_are_another_document() -> None:
    assert content_ids([one([1], "tool")]) != content_ids([one([1], "output")])


SAVING = """
    import sys
    from pathlib import Path
    from reason_spec.suffix.store import SuffixStore
    from tests.suffix.some_documents import KEY, ROOMY, documents_of
    folder, writer, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = SuffixStore(folder, KEY, max_bytes=ROOMY)
    documents = store.load("a")
    print("ready", flush=True)
    for round in range(rounds):
        documents += documents_of([writer, round, *range(int(sys.argv[4]))])
        store.save("a", documents)
    print("done", flush=True)
"""


def start_saving(folder: Path, writer: int, rounds: int, length: int = 5) -> subprocess.Popen[str]:
    arguments = [str(folder), str(writer), str(rounds), str(length)]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SAVING), *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_processes_that_save_at_once_lose_nothing(folder: Path) -> None:
    writers = [start_saving(folder, writer, 40) for writer in (1, 2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    expected = {(writer, n, 0, 1, 2, 3, 4) for writer in (1, 2) for n in range(40)}
    assert contents(open_store(folder).load("a")) == expected


def test_threads_of_one_process_lose_nothing(folder: Path) -> None:
    def save(writer: int) -> None:
        store = open_store(folder)
        for n in range(20):
            store.save("a", documents_of(*[[writer, m] for m in range(n + 1)]))

    threads = [threading.Thread(target=save, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(open_store(folder).load("a")) == {(w, n) for w in range(4) for n in range(20)}


def test_a_full_disk_leaves_the_file_as_it_was_and_a_later_save_keeps_all(folder: Path) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1, 2, 3]))
    before = the_file(folder).read_bytes()
    more = documents_of([1, 2, 3], range(500))
    with full_beyond(len(before) + 10), pytest.raises(DataError, match=r"cannot be written.*suffix\.path"):
        store.save("a", more)
    assert the_file(folder).read_bytes() == before
    assert files_of_tenant(folder, "a") == [the_file(folder)]
    store.save("a", more)
    assert_equal(open_store(folder).load("a"), more)


def test_a_process_killed_while_it_saves_leaves_an_old_or_a_new_state(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moments = random.Random(7)
    open_store(folder).save("a", documents_of([99]))
    for turn in range(5):
        writer = start_saving(folder, turn, 100_000, 20_000)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.002, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
        writer.stdout.close()
        kept = contents(open_store(folder).load("a"))
        assert (99,) in kept
        for earlier in range(turn + 1):
            numbers = sorted(document[1] for document in kept if document[0] == earlier and len(document) > 1)
            assert numbers == list(range(len(numbers)))
    assert caplog.records == []
    assert not list(folder.glob("*damaged*"))
    # Whoever comes next takes the lock, and what was half written goes.
    open_store(folder).save("a", documents_of([1]))
    assert not list(folder.glob("*.tmp")) + list(folder.glob(".*.tmp"))


def test_readers_do_not_wait_for_a_writer(folder: Path) -> None:
    from reason_spec.suffix import store as module

    open_store(folder).save("a", documents_of([1]))
    with module._locked(folder):
        assert contents(open_store(folder).load("a")) == {(1,)}
        assert list_files(folder)[0].tenant == "a"


def test_a_writer_that_waits_too_long_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reason_spec.suffix import store as module

    open_store(folder).save("a", documents_of([1]))
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    with module._locked(folder), pytest.raises(DataError, match="locked by another process"):
        open_store(folder).save("a", documents_of([2]))


def test_a_save_that_waits_for_another_process_holds_no_load_up(folder: Path) -> None:
    from reason_spec.suffix import store as module

    store = open_store(folder)
    store.save("a", documents_of([1]))
    with ThreadPoolExecutor() as threads:
        with module._locked(folder):
            saving = threads.submit(store.save, "a", documents_of([1], [2]))
            # Not before the save waits: it cannot end while the folder is locked.
            time.sleep(0.2)
            assert contents(threads.submit(store.load, "a").result(timeout=10)) == {(1,)}
            assert not saving.done()
        assert saving.result(timeout=30).num_documents == 2


def test_a_file_that_may_not_be_read_is_not_taken_for_absent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be overwritten. The library that reads it reports it as missing."""
    open_store(folder).save("a", documents_of([1]))
    the_file(folder).chmod(0)
    real_open = Path.open

    def open_as_another(path: Path, *args: Any, **options: Any) -> Any:
        if path == the_file(folder) and args[:1] == ("rb",):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *args, **options)

    monkeypatch.setattr(Path, "open", open_as_another)  # root may read all
    with pytest.raises(DataError, match="cannot be read"):
        open_store(folder).load("a")
    with pytest.raises(DataError, match="cannot be read"):
        open_store(folder).save("a", documents_of([2]))
    monkeypatch.undo()
    the_file(folder).chmod(0o600)
    assert contents(open_store(folder).load("a")) == {(1,)}


# Tenants and models --------------------------------------------------------------------------


def test_texts_of_another_model_or_vocabulary_lie_beside(folder: Path) -> None:
    open_store(folder).save("a", documents_of([1]))
    other = open_store(folder, OTHER_KEY)
    assert num_tokens(other.load("a")) == 0
    other.save("a", documents_of([2]))
    assert contents(open_store(folder).load("a")) == {(1,)}
    assert contents(open_store(folder, OTHER_KEY).load("a")) == {(2,)}
    assert {report.key for report in list_files(folder)} == {KEY, OTHER_KEY}
    assert len(files_of_tenant(folder, "a")) == 2


def test_a_file_under_the_name_of_another_is_refused(folder: Path) -> None:
    open_store(folder).save("a", documents_of([1]))
    open_store(folder, OTHER_KEY).save("b", documents_of([2]))
    the_file(folder, "a").replace(the_file(folder, "b"))
    with pytest.raises(DataError, match=r"texts of tenant 'a'.*not of tenant 'b'.*renamed"):
        open_store(folder, OTHER_KEY).load("b")


def test_saving_one_tenant_leaves_the_others_bytes_alone(folder: Path) -> None:
    store = open_store(folder, max_bytes=4000)
    store.save("a", documents_of([1]))
    before = the_file(folder, "a").read_bytes()
    store.save("b", random_documents(10_000, 100))
    assert the_file(folder, "a").read_bytes() == before


def test_erasing_removes_every_file_of_a_tenant_and_no_other(folder: Path) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1]))
    the_file(folder).write_bytes(b"rubbish")
    store.save("a", documents_of([2]))
    open_store(folder, OTHER_KEY).save("a", documents_of([3]))
    (folder / f".{the_file_of_key(folder).name}.tmp").write_bytes(b"half written")
    store.save("b", documents_of([4]))
    assert len(files_of_tenant(folder, "a")) == 4
    assert len(erase(folder, "a")) == 4
    assert files_of_tenant(folder, "a") == []
    assert contents(open_store(folder).load("b")) == {(4,)}
    names = {file.name for file in folder.iterdir()}
    assert names == {".lock", ".erasures", the_file(folder, "b").name}


def the_file_of_key(folder: Path) -> Path:
    return next(report.path for report in list_files(folder) if report.key == KEY)


def test_a_process_under_way_does_not_write_an_erased_tenant_again(folder: Path) -> None:
    store, fresh = open_store(folder), open_store(folder)
    store.save("a", documents_of([1]))
    store.save("b", documents_of([2]))
    assert num_tokens(fresh.load("a")) == 1
    erase(folder, "a")
    assert store.save("a", documents_of([1], [3])).erased
    assert files_of_tenant(folder, "a") == []
    # It stays so when another process begins the tenant anew.
    open_store(folder).save("a", documents_of([5]))
    for late in (store, fresh):
        assert late.save("a", documents_of([1], [3])).erased
    assert contents(open_store(folder).load("a")) == {(5,)}
    assert not store.save("b", documents_of([2], [6])).erased
    store.load("a")
    assert not store.save("a", documents_of([5], [7])).erased
    assert contents(open_store(folder).load("a")) == {(5,), (7,)}


def test_a_process_that_loads_while_another_erases_does_not_write_the_tenant_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1]))
    late, unlink = open_store(folder), Path.unlink

    def unlink_late(path: Path, **options: Any) -> None:
        late.load("a")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    erase(folder, "a")
    monkeypatch.undo()
    assert late.save("a", documents_of([1])).erased
    assert open_store(folder).load("a") == []


def test_a_tenant_that_was_never_saved_is_not_after_an_erasure(folder: Path) -> None:
    store = open_store(folder)
    store.load("a")
    open_store(folder).save("a", documents_of([1]))
    erase(folder, "a")
    assert store.save("a", documents_of([1], [2])).erased


# Reports -------------------------------------------------------------------------------------


def test_reports_count_by_source(folder: Path) -> None:
    documents = [
        make_document([("prompt", [1, 2, 3]), ("output", [4])], last_used=10.0, usefulness=2.0),
        make_document([("tool", [5, 6]), ("output", [7])], last_used=20.0, usefulness=3.0),
    ]
    open_store(folder).save("a", documents)
    (report,) = list_files(folder)
    assert report.tokens_by_source == (("prompt", 3), ("tool", 2), ("output", 2))
    assert (report.num_documents, report.num_tokens, report.accepted_tokens) == (2, 7, 5.0)
    assert report.last_used == 20.0
    assert report.problem is None
    the_file(folder).write_bytes(b"rubbish")
    open_store(folder).load("a")
    open_store(folder).save("b", [])
    good, bad = list_files(folder)
    assert (good.tenant, good.last_used) == ("b", None)
    assert bad.problem == "was set aside as damaged"
    assert tenants_of(folder) == ["b"]
