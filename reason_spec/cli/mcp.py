"""The command ``mcp``: a proxy in front of an MCP server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

MCP_HELP = (
    "Stand between an MCP client and an MCP server, and run likely calls ahead.\n\n"
    "Write it before the server's own command in the client's configuration: reason-spec mcp -- COMMAND. "
    "Everything is passed on. Calls to tools whose annotations say readOnlyHint are also made before the "
    "client asks, as soon as the last result makes them likely. Both sides speak stdio; for HTTP put a "
    "bridge such as mcp-proxy between."
)


def mcp(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Starts the server.")],
    learn: Annotated[
        list[Path] | None,
        typer.Option(
            "--learn", metavar="FILE", help="Past conversations (jsonl, .traj); several times for several."
        ),
    ] = None,
    read_only: Annotated[
        list[str] | None,
        typer.Option(
            "--read-only",
            metavar="RULE",
            help="A tool that changes nothing, where the server does not say so: NAME, or "
            "NAME(ARGUMENT=VALUE).",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Chance from which on a call runs ahead. Default: the model's."),
    ] = None,
    max_calls: Annotated[int, typer.Option(min=0, help="Calls that run or are held at a time.")] = 8,
    max_seconds: Annotated[float, typer.Option(min=0, help="Seconds that calls may run in vain.")] = 60.0,
    max_bytes: Annotated[int, typer.Option(min=0, help="Bytes of the results that are held.")] = 4 << 20,
    max_age: Annotated[float, typer.Option(min=0, help="Seconds until a result is dropped.")] = 60.0,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model of the next call. Default: the one that ships."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Log to standard error what runs ahead.")] = False,
) -> None:
    from reason_spec.suffix.traces import read_traces
    from reason_spec.tools_ahead.calls import events_of
    from reason_spec.tools_ahead.held import AheadLimits
    from reason_spec.tools_ahead.mcp_proxy import McpProxy, report_line, run_on_stdio
    from reason_spec.tools_ahead.model import SHIPPED, load_model

    past = [list(events_of(one.messages)) for file in learn or () for one in read_traces(file).conversations]
    proxy = McpProxy(
        command,
        load_model(SHIPPED if model is None else model),
        past=past,
        read_only=read_only or (),
        limits=AheadLimits(max_calls, max_seconds, max_bytes, max_age, threshold),
        log=(lambda line: typer.echo(f"reason-spec mcp: {line}", err=True)) if log else lambda _: None,
    )
    try:
        report = asyncio.run(run_on_stdio(proxy))
    except asyncio.CancelledError:
        # The server has ended.
        raise typer.Exit(128 + signal.SIGTERM) from None
    if log:
        typer.echo(f"reason-spec mcp: {report_line(report)}", err=True)
