"""API keys: only their hashes are stored, each with its tenant."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from reason_spec.errors import DataError, SettingsError, first_mistake
from reason_spec.server.base import Client
from reason_spec.settings import API_KEY_VARIABLE, ServerSettings

_PREFIX = "rs-"
_KEY_BYTES = 32
_LEAST_CHARACTERS, _MOST_CHARACTERS = 16, 512
_OTHERS_MAY_WRITE = 0o022


class _Entry(BaseModel):
    """One line of the key file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    tenant: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9._@-]+$")]
    trusted: bool = False
    created: str | None = None


_ENTRIES = TypeAdapter(tuple[_Entry, ...])


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The valid keys. ``anyone`` is the client of requests without a key; None: they are refused."""

    by_hash: Mapping[bytes, Client]
    anyone: Client | None = None

    def client_of(self, key: str) -> Client | None:
        """Return the owner of a key, None for an unknown one.

        The hash of the key is compared with every hash, so that the time reveals nothing.
        """
        if len(key) > _MOST_CHARACTERS:
            return None
        sent = _digest(key)
        found = None
        for digest, client in self.by_hash.items():
            if hmac.compare_digest(digest, sent):
                found = client
        return found

    @property
    def tenants(self) -> tuple[str, ...]:
        """All tenants, sorted."""
        clients = (*self.by_hash.values(), *((self.anyone,) if self.anyone else ()))
        return tuple(sorted({client.tenant for client in clients}))


def load_keys(settings: ServerSettings, default_tenant: str) -> KeyRing:
    """Read the keys that the settings name.

    Args:
        default_tenant: owner of the key in the environment, and of requests if there are no keys.

    Raises:
        SettingsError: a key is too short, or there is none and other machines can reach the server.
        DataError: the key file cannot be read, or other users may write it.
    """
    clients: dict[bytes, Client] = {}
    if settings.api_keys_file is not None:
        for entry in read_keys(settings.api_keys_file):
            digest = bytes.fromhex(entry.hash.removeprefix("sha256:"))
            clients[digest] = Client(entry.tenant, entry.trusted)
    if key := os.environ.get(API_KEY_VARIABLE):
        if len(key) < _LEAST_CHARACTERS:
            raise SettingsError(
                f"the key in {API_KEY_VARIABLE} has {len(key)} characters; use {_LEAST_CHARACTERS} "
                "or more, as from: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        clients[_digest(key)] = Client(default_tenant, settings.trusted)
    if clients:
        return KeyRing(clients)
    if settings.api_keys_file is not None:
        raise DataError(f"{settings.api_keys_file} holds no key. Make one with: {_new_key_command(settings)}")
    if not is_loopback(settings.host):
        raise SettingsError(
            f"server.host is {settings.host!r}, so others can reach the server, and there is no key. Make "
            f"one with: {_new_key_command(settings)}, and name the file with --api-keys "
            f"(server.api_keys_file), or put a key into the environment variable {API_KEY_VARIABLE}"
        )
    return KeyRing({}, anyone=Client(default_tenant, settings.trusted))


def read_keys(file: Path) -> tuple[_Entry, ...]:
    """Return the entries of a key file.

    Raises:
        DataError: it is missing or damaged, or other users may write it.
    """
    try:
        mode = file.stat().st_mode
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or ()
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file. Make it with: reason-spec keys new TENANT") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        # Its content stays out of the message.
        raise DataError(f"{file}: cannot be read as a file of keys") from None
    if mode & _OTHERS_MAY_WRITE:
        raise DataError(f"{file}: other users may write it, and so add keys. Run: chmod 600 {file}")
    try:
        return _ENTRIES.validate_python(values)
    except ValidationError as error:
        raise DataError(f"{file}: {first_mistake(error)}") from None


def add_key(file: Path, tenant: str, *, trusted: bool = False) -> str:
    """Make a key for a tenant, add its hash to a file, and return the key, which is not stored.

    Raises:
        SettingsError: the tenant's name has characters other than letters, digits and ``._@-``.
        DataError: the file is damaged or cannot be written.
    """
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        entry = _Entry(hash=f"sha256:{_digest(key).hex()}", tenant=tenant, trusted=trusted, created=created)
    except ValidationError:
        raise SettingsError(
            f"tenant {tenant!r}: use letters, digits and ._@- (at most 64 characters)"
        ) from None
    if file.exists():
        read_keys(file)
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as target:
            before = target.read()
            start = b"\n" if before and not before.endswith(b"\n") else b""
            target.write(start + f"- {entry.model_dump_json()}\n".encode())
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error.strerror})") from None
    return key


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address; of names, only localhost is known."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    # Keys are random and long, so a slow hash would add no security.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _new_key_command(settings: ServerSettings) -> str:
    return f"reason-spec keys new TENANT --file {settings.api_keys_file or 'keys.yaml'}"
