"""Keys: made once, kept as hashes, and tenants follow from them alone."""

from __future__ import annotations

import asyncio
import hmac
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from reason_spec.errors import DataError, SettingsError
from reason_spec.server.base import Client
from reason_spec.server.keys import KeyRing, add_key, is_loopback, load_keys, read_keys
from reason_spec.server.service import Service
from reason_spec.settings import ServerSettings
from reason_spec.strategies.suffix_session import SuffixCacheSessions
from tests.cli_runner import fail, succeed
from tests.server.asgi import ask
from tests.server.serving import scripted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def ring(file: Path) -> KeyRing:
    return load_keys(ServerSettings(api_keys_file=file), "default")


def test_a_key_stands_for_its_tenant_and_for_nobody_else(file: Path) -> None:
    ana, ben = add_key(file, "ana"), add_key(file, "ben", trusted=True)
    keys = ring(file)
    assert keys.client_of(ana) == Client("ana")
    assert keys.client_of(ben) == Client("ben", trusted=True)
    assert keys.anyone is None
    assert keys.tenants == ("ana", "ben")
    for wrong in ("", ana[:-1], ana + "x", ana.upper(), "\udcff", "x" * 100_000, read_keys(file)[0].hash):
        assert keys.client_of(wrong) is None


def test_the_file_holds_no_key_and_is_its_owners_alone(file: Path) -> None:
    key = add_key(file, "ana")
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_line_that_somebody_wrote_without_an_end_is_left_whole(file: Path) -> None:
    first = add_key(file, "ana")
    file.write_text(file.read_text().rstrip("\n"))
    second = add_key(file, "ben")
    assert [ring(file).client_of(key) for key in (first, second)] == [Client("ana"), Client("ben")]


def test_every_hash_is_compared_in_constant_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [add_key(file, name) for name in ("ana", "ben", "eve")]
    keys, compare = ring(file), Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in (*made, "wrong"):
        compare.reset_mock()
        keys.client_of(key)
        assert compare.call_count == 3


def test_a_file_that_others_may_write_is_refused(file: Path) -> None:
    add_key(file, "ana")
    file.chmod(0o620)
    with pytest.raises(DataError, match="chmod 600"):
        ring(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no key"),
        ("- {tenant: ana}", "hash"),
        ("- {hash: 'sha256:00', tenant: ana}", "hash"),
        ("- {hash: 'sha256:" + "0" * 64 + "', tenant: 'a b'}", "tenant"),
        ("- {hash: 'sha256:" + "0" * 64 + "', tenant: a, admin: true}", "admin"),
        ("[", "cannot be read as a file of keys"),
    ],
)
def test_a_damaged_file_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(DataError, match=message):
        ring(file)


def test_a_missing_file_says_how_to_make_one(file: Path) -> None:
    with pytest.raises(DataError, match="reason-spec keys new"):
        ring(file)


def test_the_one_key_of_the_environment_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_API_KEY", "a key that is long enough")
    keys = load_keys(ServerSettings(host="0.0.0.0"), "default")
    assert keys.client_of("a key that is long enough") == Client("default", trusted=True)
    assert keys.anyone is None
    untrusted = load_keys(ServerSettings(trusted=False), "default")
    assert untrusted.client_of("a key that is long enough") == Client("default")


def test_a_key_that_could_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_API_KEY", "secret")
    with pytest.raises(SettingsError, match="16 or more") as caught:
        load_keys(ServerSettings(), "default")
    assert "secret'" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_nobody_beyond_this_machine_is_let_in_without_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="reason-spec keys new"):
        load_keys(ServerSettings(host=host), "default")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_this_machine_no_key_is_needed(host: str) -> None:
    assert is_loopback(host)
    assert load_keys(ServerSettings(host=host), "default").anyone == Client("default", trusted=True)


def test_the_command_makes_a_key_and_keeps_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = succeed("keys", "new", "ana", "--trusted")
    key = made.stdout.strip()
    assert ring(tmp_path / "keys.yaml").client_of(key) == Client("ana", trusted=True)
    assert key not in (tmp_path / "keys.yaml").read_text()
    assert "letters, digits" in fail("keys", "new", "a b")


def revoke_last(file: Path) -> None:
    *others, _ = file.read_text().splitlines(keepends=True)
    file.write_text("".join(others))


async def test_new_keys_count_once_the_texts_of_their_tenants_are_loaded_and_revoked_ones_end_at_once(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    may_end = threading.Event()

    def load(_: SuffixCacheSessions, tenants: Iterable[str]) -> None:
        loaded.extend(tenants)
        assert may_end.wait(60)

    async def status(key: str) -> int | None:
        headers = [("Authorization", f"Bearer {key}")]
        return (await ask(service.guard, "GET", "/v1/models", headers=headers)).status

    ana, eve = add_key(file, "ana"), add_key(file, "eve")
    suffix: dict[str, Any] = {"suffix__use": "steps", "suffix__rule": "published"}
    service = Service(scripted(tmp_path, {}, server__api_keys_file=str(file), **suffix))
    await service.start()
    monkeypatch.setattr(SuffixCacheSessions, "load", load)
    revoke_last(file)
    ben = add_key(file, "ben")
    reading = asyncio.create_task(service.read_keys_again())
    try:
        async with asyncio.timeout(60):
            while not loaded:  # noqa: ASYNC110 - a thread announces nothing
                await asyncio.sleep(0.001)
        assert [await status(key) for key in (ana, ben, eve)] == [200, 401, 401]
    finally:
        may_end.set()
        await reading
    assert (loaded, await status(ben)) == (["ana", "ben"], 200)
    await service.close()
