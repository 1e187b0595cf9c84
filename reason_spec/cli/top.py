"""The command ``top``: what a server does now, read from its metrics."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

from reason_spec.cli.options import OUTPUT, JsonOption, option
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.cli.top_screens import Snapshot

TOP_HELP = (
    "Show what a server does now: answers, latency, speed-up over the target alone, acceptance by layer and "
    "what the load controller decided.\n\n"
    "It reads the server's /metrics, with the key in REASON_SPEC_API_KEY if there is one; a server with keys "
    "shows them to trusted clients. On a terminal the table is renewed until Ctrl-C; elsewhere it is printed "
    "once."
)
_SERVER = "Server"
_TIMEOUT_SECONDS = 10.0
_SESSION = "reason-spec-top"
"""Behind `serve --ray` each session has one pair: the figures of two looks must be of one."""


def top(
    url: Annotated[
        str, option("--url", "Address of the server. Default: http://127.0.0.1:8000.", _SERVER)
    ] = "http://127.0.0.1:8000",
    every: Annotated[
        float, option("--every", "Seconds between two looks. Default: 2.", OUTPUT, min=0.2)
    ] = 2.0,
    once: Annotated[
        bool, option("--once", "Print the table once, with what happened so far.", OUTPUT)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a server does now."""
    from rich.live import Live

    from reason_spec.cli.screen import Screen
    from reason_spec.cli.top_screens import figures_of, table_of

    screen = Screen(as_json=as_json)
    first = _look(url)
    if as_json:
        screen.write_json(figures_of(None, first))
    elif once or not sys.stdout.isatty():
        screen.print_table(table_of(None, first))
    else:
        with Live(table_of(None, first), console=screen.out, auto_refresh=False) as live:
            before = first
            while True:
                time.sleep(every)
                try:
                    now = _look(url)
                except SettingsError as error:
                    # A server that restarts comes back.
                    live.update(str(error), refresh=True)
                    continue
                live.update(table_of(before, now), refresh=True)
                before = now


def _look(url: str) -> Snapshot:
    """Read the metrics of a server.

    Raises:
        SettingsError: no server of ours answers there, or it does not show its metrics.
    """
    import httpx2

    from reason_spec.cli.top_screens import Snapshot
    from reason_spec.settings.server import API_KEY_VARIABLE

    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    key = os.environ.get(API_KEY_VARIABLE)
    headers = {"x-session-id": _SESSION} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        response = httpx2.get(address, headers=headers, timeout=_TIMEOUT_SECONDS)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise SettingsError(
            f"--url {url}: no server answers at {address} ({error}). Start one with: reason-spec serve"
        ) from None
    if response.status_code in (401, 403):
        raise SettingsError(
            f"--url {url}: the server does not show its metrics ({response.status_code}). Set "
            f"{API_KEY_VARIABLE} to the key of a trusted client; if it has no keys, name its host in "
            "server.allowed_hosts"
        )
    if response.status_code != 200 or "reason_spec:" not in response.text:
        raise SettingsError(f"--url {url}: {address} has no metrics of reason-spec ({response.status_code})")
    return Snapshot.parse(response.text)
