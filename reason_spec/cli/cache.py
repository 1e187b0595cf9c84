"""The commands of ``cache``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reason_spec.cli.command import waiting
from reason_spec.cli.flags import Flags, takes_flags
from reason_spec.cli.options import JsonOption, QuietOption, option, setting_option
from reason_spec.settings import Settings

_CACHE = "Cache"

cache_app = typer.Typer(
    no_args_is_help=True,
    help="Manage the suffix cache on disk: earlier texts from which tokens and steps are proposed.",
)


CachePathOption = Annotated[
    Path | None, setting_option("suffix.path", "--path", "The cache's folder.", _CACHE)
]
TenantOption = Annotated[
    str | None,
    setting_option("suffix.tenant", "--tenant", "Owner of the texts.", _CACHE),
]
TenantToEraseOption = Annotated[str, option("--tenant", "Owner of the texts to remove.", _CACHE)]


def _resolve(flags: Flags, path: Path | None, tenant: str | None = None) -> Settings:
    return flags.resolve({"suffix.path": path, "suffix.tenant": tenant})


@cache_app.command("stats")
@takes_flags()
def cache_stats(
    flags: Flags, path: CachePathOption = None, tenant: TenantOption = None, as_json: JsonOption = False
) -> None:
    """Show the texts in the cache by tenant and source."""
    from reason_spec.cli import cache_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.suffix.store import list_files

    folder = cache_screens.folder_of(_resolve(flags, path).suffix)
    with waiting("Reading", as_json):
        files = list_files(folder)
    if tenant is not None:
        files = [file for file in files if file.tenant == tenant]
        if not files:
            raise cache_screens.nothing_kept(folder, tenant)
    if as_json:
        typer.echo(json.dumps(cache_screens.stats_record(folder, files), ensure_ascii=False))
    else:
        cache_screens.print_stats(folder, files, Screen())


@cache_app.command(
    "import",
    help="Learn past conversations, so that the cache is warm before the first request.\n\n"
    "A file has one conversation per line: an object with messages in OpenAI's form, or the list of them; "
    "gzip too. Results of tau-bench and .traj files of SWE-agent are read as well. "
    "Conversations are encoded with the target's tokenizer and chat template.",
)
@takes_flags("target", "skip_bad")
def cache_import(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Conversations (jsonl, json, traj, also gzip)."),
    ],
    flags: Flags,
    path: CachePathOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import cache_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.job import warn_of_bad_lines

    settings = _resolve(flags, path, tenant)
    screen = Screen(as_json=as_json, quiet=quiet)
    report = cache_screens.import_files(settings, files, skip_bad=flags.given["skip_bad"], screen=screen)
    folder = cache_screens.folder_of(settings.suffix)
    warn_of_bad_lines(report.bad_lines, screen)
    if as_json:
        typer.echo(json.dumps({"path": str(folder), **asdict(report)}, ensure_ascii=False))
    else:
        typer.echo(cache_screens.import_line(report, folder))


@cache_app.command("erase")
@takes_flags()
def cache_erase(
    tenant: TenantToEraseOption,
    flags: Flags,
    path: CachePathOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove all texts of a tenant, for all models, set-aside files included."""
    from reason_spec.cli import cache_screens
    from reason_spec.evaluation.amounts import counted, size
    from reason_spec.suffix.store import erase

    folder = cache_screens.folder_of(_resolve(flags, path).suffix)
    files = cache_screens.files_to_erase(folder, tenant)
    if not yes:
        held = size(sum(file.stat().st_size for file in files))
        typer.confirm(f"Remove {held} of tenant {tenant!r} in {folder} for good?", abort=True, err=True)
    gone = erase(folder, tenant)
    if as_json:
        record = {"path": str(folder), "tenant": tenant, "files": [file.name for file in gone]}
        typer.echo(json.dumps(record, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"Removed {counted(len(gone), 'file')} of tenant {tenant!r} from {folder}.")
