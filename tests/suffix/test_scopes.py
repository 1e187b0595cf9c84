"""Caches by scope over one store: all begin with what was kept, one is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import pytest

from reason_spec.errors import DataError
from reason_spec.settings import SuffixSettings
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.scopes import StoredCache, SuffixCaches, open_caches
from reason_spec.suffix.store import SaveReport, SuffixStore, erase
from tests.suffix.some_documents import KEY

TEXT = list(range(100, 180))


def opened(folder: Path | None, *, saves: bool = True, reads: tuple[str, ...] = ()) -> SuffixCaches:
    return open_caches(SuffixSettings(use="both", path=folder, tenant="ana", reads=reads), KEY, saves=saves)


def learn(caches: SuffixCaches, scope: str = "", tenant: str = "ana") -> None:
    session = caches.open_session(scope, tenant)
    session.begin([("prompt", TEXT[:40])])
    session.extend(TEXT[40:])
    session.close()


def knows(caches: SuffixCaches, scope: str = "", tenant: str = "ana") -> bool:
    session = caches.open_session(scope, tenant)
    session.begin([("prompt", TEXT[:60])])
    return session.propose_tokens(4).tokens[:1] == (TEXT[60],)


def test_every_scope_begins_with_what_was_kept_and_the_nameless_one_is_kept(tmp_path: Path) -> None:
    first = opened(tmp_path)
    learn(first, scope="compared")
    first.save()
    assert not knows(opened(tmp_path))
    learn(first)
    first.save()
    again = opened(tmp_path)
    assert knows(again)
    assert knows(again, scope="compared")


def test_scopes_and_tenants_do_not_learn_from_each_other() -> None:
    caches = opened(None)
    learn(caches)
    assert knows(caches)
    assert not knows(caches, scope="other")
    assert not knows(caches, tenant="ben")
    caches.forget("")
    assert not knows(caches)


def test_a_tenant_that_may_be_read_is_loaded_too(tmp_path: Path) -> None:
    first = opened(tmp_path)
    learn(first, tenant="ben")
    first.save()
    assert knows(opened(tmp_path, reads=("ben",)))
    assert not knows(opened(tmp_path))


def test_who_only_reads_writes_nothing(tmp_path: Path) -> None:
    caches = opened(tmp_path / "kept", saves=False)
    learn(caches)
    caches.save()
    assert not (tmp_path / "kept").exists()


def test_where_nothing_was_learnt_nothing_is_written(tmp_path: Path) -> None:
    caches = opened(tmp_path / "kept")
    caches.save()
    assert not (tmp_path / "kept").exists()


def test_what_was_erased_meanwhile_is_not_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caches = opened(tmp_path)
    learn(caches)
    caches.save()
    erase(tmp_path, "ana")
    with caplog.at_level(logging.WARNING):
        caches.save()
    assert "'ana'" in caplog.text
    assert not knows(caches)
    assert not knows(opened(tmp_path))
    learn(caches)
    caches.save()
    assert knows(opened(tmp_path))


def test_an_erased_tenant_is_reported_and_others_forget_it_when_they_are_asked_to(tmp_path: Path) -> None:
    """A worker saves nothing, so it learns of the erasure from the process that does."""
    caches = opened(tmp_path)
    learn(caches)
    caches.save()
    assert caches.take_erased() == []
    worker = opened(tmp_path, saves=False)
    assert knows(worker)
    erase(tmp_path, "ana")
    caches.save()
    assert caches.take_erased() == ["ana"]
    assert caches.take_erased() == []
    worker.erase("ana")
    assert not knows(worker)


def test_a_tenant_that_cannot_be_saved_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches, save = opened(tmp_path), SuffixStore.save

    def refuse_ana(store: SuffixStore, tenant: str, *rest: Any) -> SaveReport:
        if tenant == "ana":
            raise DataError("no place for ana")
        return save(store, tenant, *rest)

    for tenant in ("ana", "ben"):
        learn(caches, tenant=tenant)
    monkeypatch.setattr(SuffixStore, "save", refuse_ana)
    with pytest.raises(DataError, match="no place for ana"):
        caches.save()
    assert knows(opened(tmp_path), tenant="ben")
    assert not knows(opened(tmp_path), tenant="ana")


def test_a_place_that_is_no_folder_is_said_at_the_start(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        opened(place)


@pytest.mark.parametrize("is_saved", [False, True])
def test_tenants_beyond_the_limit_of_all_are_dropped_and_saved_ones_come_back(
    tmp_path: Path, is_saved: bool
) -> None:
    """The default tenant and seven others take the limit."""
    limited = SuffixSettings(path=tmp_path if is_saved else None, max_total_bytes=1 << 16)
    caches = open_caches(limited, KEY)
    names = [f"tenant {number}" for number in range(12)]
    for name in names:
        learn(caches, tenant=name)
    cache = caches._caches[""]
    assert isinstance(cache, StoredCache)
    assert isinstance(cache._cache, SuffixCache)
    if is_saved:
        assert len(cache._cache._tenants) > len(names)
        caches.save()
    assert len(cache._cache._tenants) < len(names)
    assert cache._cache.size(names[0]).num_tokens == 0
    assert knows(caches, tenant=names[-1])
    assert knows(caches, tenant=names[0]) == is_saved
    if is_saved:
        caches.save()
        assert all(knows(open_caches(limited, KEY), tenant=name) for name in names)


@pytest.mark.parametrize("rule", ["ours", "published"])
def test_an_erased_tenant_is_proposed_by_no_rule(rule: Literal["ours", "published"], tmp_path: Path) -> None:
    learn(first := opened(tmp_path))
    first.save()
    settings = SuffixSettings(use="both", path=tmp_path, tenant="ana", rule=rule)
    caches = open_caches(settings, KEY, saves=True)
    open_one = caches.open_session("", "ana")
    assert knows(caches)
    erase(tmp_path, "ana")
    caches.save()
    assert caches.take_erased() == ["ana"]
    assert not knows(caches)
    open_one.begin([("prompt", TEXT[:60])])
    assert open_one.propose_tokens(4).tokens == ()
