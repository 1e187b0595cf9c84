"""The ``reason-spec`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from reason_spec import __version__
from reason_spec.cli.cache import cache_app
from reason_spec.cli.command import CommandGroup, run_app
from reason_spec.cli.doctor import doctor
from reason_spec.cli.draft import draft_app
from reason_spec.cli.eval import EVAL_HELP, evaluate
from reason_spec.cli.exit import exit_app
from reason_spec.cli.grade import grade, verify
from reason_spec.cli.mcp import MCP_HELP, mcp
from reason_spec.cli.plan import PLAN_HELP, plan
from reason_spec.cli.report import REPORT_HELP, report
from reason_spec.cli.router import router_app
from reason_spec.cli.server import SERVE_HELP, keys_app, serve
from reason_spec.cli.settings import settings
from reason_spec.cli.solve import SOLVE_HELP, solve
from reason_spec.cli.top import TOP_HELP, top
from reason_spec.cli.tune import tune_app
from reason_spec.cli.verifier import verifier_app

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tune_app, name="tune")
app.add_typer(draft_app, name="draft")
app.add_typer(router_app, name="router")
app.add_typer(verifier_app, name="verifier")
app.add_typer(exit_app, name="exit")
app.add_typer(cache_app, name="cache")
app.add_typer(keys_app, name="keys")
# Texts with paragraphs are given here: of a docstring, the line breaks inside a paragraph would show.
app.command(help=SOLVE_HELP)(solve)
app.command("eval", help=EVAL_HELP)(evaluate)
app.command(help=SERVE_HELP)(serve)
app.command(help=TOP_HELP)(top)
app.command(help=PLAN_HELP)(plan)
app.command(help=REPORT_HELP)(report)
app.command(help=MCP_HELP)(mcp)
for command in (grade, verify, settings, doctor):
    app.command()(command)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Answer reasoning problems sooner with step-level and token-level speculation."""


def main() -> None:
    """Run the command line."""
    run_app(app)
