"""The commands ``serve`` and ``keys``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from reason_spec.cli.flags import SERVER_FLAGS, STRATEGY_FLAGS, THINKING_FLAGS, Flags, takes_flags
from reason_spec.cli.options import ConfigOption, QuietOption, resolve_settings, setting_option

_SERVER = "Server"
SERVE_DEFAULTS = {"suffix.use": "both"}
"""Defaults that differ from the settings tree: requests to a server often share a prefix."""
_KEYS_FILE = Path("keys.yaml")

keys_app = typer.Typer(
    no_args_is_help=True, help="Make keys for clients of the server. Only hashes are stored."
)

SERVE_HELP = (
    "Serve the target with speculation and OpenAI's interface: /v1/chat/completions, /v1/completions, "
    "/v1/responses, /v1/models.\n\n"
    "Without options it serves the demonstration pair to this machine only, at http://127.0.0.1:8000/v1. An "
    "address that others can reach needs keys: see 'reason-spec keys new'.\n\n"
    "The suffix cache proposes tokens and steps from earlier texts of the same tenant (suffix.use: both, "
    "unless set otherwise). --cache keeps it on disk."
)


HostOption = Annotated[
    str | None,
    setting_option(
        "server.host", "--host", "Address to listen on; others than localhost need keys.", _SERVER
    ),
]
PortOption = Annotated[
    int | None,
    setting_option("server.port", "--port", "Port; 0 takes a free one.", _SERVER, min=0, max=65535),
]
ApiKeysOption = Annotated[
    Path | None, setting_option("server.api_keys_file", "--api-keys", "File that 'keys new' wrote.", _SERVER)
]
CacheOption = Annotated[
    Path | None, setting_option("suffix.path", "--cache", "Folder of the suffix cache.", _SERVER)
]
EngineOption = Annotated[
    Literal["torch", "vllm", "remote"] | None,
    typer.Option(
        help="Engine of the models: torch, vllm, or remote (target at --target-url). Default: torch.",
        metavar="NAME",
        rich_help_panel="Models",
        show_default=False,
    ),
]


@takes_flags(*SERVER_FLAGS, *STRATEGY_FLAGS, "max_tokens", *THINKING_FLAGS)
def serve(
    flags: Flags,
    host: HostOption = None,
    port: PortOption = None,
    api_keys: ApiKeysOption = None,
    cache: CacheOption = None,
    engine: EngineOption = None,
    quiet: QuietOption = False,
) -> None:
    """Serve with OpenAI's interface."""
    more = {"server.host": host, "server.port": port, "server.api_keys_file": api_keys, "suffix.path": cache}
    if engine == "remote" and not flags.given["draft_url"]:
        # The engine's name is about the target: the draft model has no server.
        more["draft.kind"] = None
    flags = Flags({**flags.given, "engine": engine})
    settings = flags.resolve(more, SERVE_DEFAULTS)

    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.job import start_engines
    from reason_spec.server.run import Server

    screen = Screen(quiet=quiet)
    server = Server(
        settings,
        start=lambda accelerator: start_engines(accelerator, settings, screen),
        say=lambda text: None if quiet else screen.write(text),
    )
    asyncio.run(server.run())


FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="The file of keys. Default: server.api_keys_file, else keys.yaml.", show_default=False
    ),
]


@keys_app.command("new")
def new_key(
    tenant: Annotated[str, typer.Argument(help="Owner of the key. Tenants share no texts.")],
    file: FileOption = None,
    trusted: Annotated[
        bool,
        typer.Option("--trusted", help="The client may choose the speculation, and gets its report."),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Make a key, print it once, and add its hash to the file.

    To revoke a key, remove its line and send the server SIGHUP.
    """
    from reason_spec.cli.command import error_console
    from reason_spec.server.keys import add_key

    chosen = _file(file, config)
    key = add_key(chosen, tenant, trusted=trusted)
    typer.echo(key)
    note = f"Its hash is in {chosen}, the key itself nowhere but here. Serve with --api-keys {chosen}"
    error_console().print(note, soft_wrap=True, highlight=False, markup=False)


def _file(file: Path | None, config: Path | None) -> Path:
    return file or resolve_settings(config, {}).server.api_keys_file or _KEYS_FILE
