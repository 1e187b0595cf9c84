"""`reason-spec cache` on the screen: statistics, imports of past conversations, erasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from reason_spec.cli.screen import Screen
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.engines.weights import identify_model
from reason_spec.errors import DataError, SettingsError, did_you_mean
from reason_spec.evaluation.amounts import ago, counted, size
from reason_spec.settings import EngineSettings, Settings, SuffixSettings
from reason_spec.suffix.rendering import ConversationEncoder, learn
from reason_spec.suffix.store import (
    FileReport,
    SaveReport,
    SuffixStore,
    files_of_tenant,
    tenants_of,
)
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.suffix.traces import Conversation, read_traces


def folder_of(settings: SuffixSettings) -> Path:
    """Return the folder that a command is about.

    Raises:
        SettingsError: none is named.
    """
    if settings.path is None:
        raise SettingsError("no folder is named: give --path, or set suffix.path")
    return settings.path


# Statistics ----------------------------------------------------------------------------------


def stats_record(path: Path, files: Sequence[FileReport]) -> dict[str, Any]:
    """Return what a folder holds as JSON; times are in seconds since 1970."""
    records = []
    for file in files:
        record = {**asdict(file), "path": str(file.path), "tokens_by_source": dict(file.tokens_by_source)}
        records.append(record)
    return {"path": str(path), "num_bytes": sum(file.num_bytes for file in files), "files": records}


def print_stats(path: Path, files: Sequence[FileReport], screen: Screen) -> None:
    """Print what a folder holds as a table, and warn of files that cannot be read."""
    sound = [file for file in files if file.problem is None]
    if not sound:
        screen.out.print(f"{path} holds no texts.", soft_wrap=True)
    else:
        screen.out.print(_stats_table(sound))
    for file in files:
        if file.problem is not None:
            screen.warn(f"{file.path} ({size(file.num_bytes)}): {file.problem}")


def _stats_table(files: Sequence[FileReport]) -> RichTable:
    # The column is only needed for texts of several models.
    several = len({file.key for file in files}) > 1
    table = RichTable(box=SIMPLE_HEAD)
    for heading in ("tenant", "model") if several else ("tenant",):
        table.add_column(heading, overflow="fold")
    sources = [source for source, _ in files[0].tokens_by_source]
    for heading in ("texts", "tokens", *sources, "on disk", "last use"):
        table.add_column(heading, justify="right", no_wrap=True)
    for file in files:
        table.add_row(
            file.tenant,
            *([f"{file.key.model[:14]}, {file.key.tokenizer[:4]}"] if several and file.key else []),
            f"{file.num_documents:,}",
            f"{file.num_tokens:,}",
            *(f"{tokens:,}" for _, tokens in file.tokens_by_source),
            size(file.num_bytes),
            ago(file.last_used),
        )
    return table


# Learning ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Counts of an import, and the tenant's stored texts after it."""

    tenant: str
    num_conversations: int
    num_answers: int
    num_answer_tokens: int
    bad_lines: tuple[str, ...]
    kept: SaveReport


def import_files(
    settings: Settings, files: Sequence[Path], *, skip_bad: bool, screen: Screen
) -> ImportReport:
    """Learn conversations into the folder of the settings, for the target's vocabulary.

    All files are read first, so that a damaged one changes nothing.

    Raises:
        SettingsError: no folder is named, or the target has no vocabulary to keep.
        DataError: a file or the folder cannot be read or written, or a line is unusable.
        EngineError: the tokenizer cannot be loaded.
    """
    suffix = settings.suffix
    store_path = folder_of(suffix)
    tokenizer = target_tokenizer(settings.target)
    key = StoreKey(identify_model("target", settings.target), tokenizer.tokenizer_id)
    conversations: list[tuple[Path, Conversation]] = []
    bad_lines: list[str] = []
    for file in files:
        traces = read_traces(file, skip_bad=skip_bad)
        conversations += [(file, conversation) for conversation in traces.conversations]
        bad_lines += [f"{file}, line {line.line}: {line.reason}" for line in traces.bad_lines]
    store = SuffixStore(store_path, key, max_bytes=suffix.max_bytes)
    documents = store.load(suffix.tenant)
    num_answer_tokens = 0
    encoder = ConversationEncoder(tokenizer)
    # numba and the code it compiles take a second or more to load.
    from reason_spec.suffix.cache import SuffixCache

    with screen.counting("Learning", len(conversations), "conversations") as advance:
        cache = SuffixCache(suffix)
        cache.restore(suffix.tenant, documents)
        for file, conversation in conversations:
            try:
                with cache.open_session(suffix.tenant) as session:
                    num_answer_tokens += learn(conversation, encoder, session)
            except DataError as error:
                if not skip_bad:
                    raise DataError(f"{file}, {error}. Leave it out with --skip-bad.") from None
                bad_lines.append(f"{file}, {error}")
            advance()
    kept = store.save(suffix.tenant, cache.snapshot(suffix.tenant))
    if kept.erased:
        raise DataError(
            f"tenant {suffix.tenant!r} was erased meanwhile: nothing was kept. Import the files again."
        )
    return ImportReport(
        suffix.tenant,
        len(conversations),
        sum(conversation.num_answers for _, conversation in conversations),
        num_answer_tokens,
        tuple(bad_lines),
        kept,
    )


def target_tokenizer(target: EngineSettings) -> HuggingFaceTokenizer:
    """Load the tokenizer of the target.

    Raises:
        SettingsError: the target is a script, whose token ids differ in each process.
        EngineError: it cannot be loaded.
    """
    if target.kind == "scripted":
        raise SettingsError(
            "a scripted target has no fixed vocabulary for stored texts; name a model with --target"
        )
    model = target.remote.tokenizer or resolve_model("target", target.model)
    return load_tokenizer(model, target.revision, target.chat_template)


def import_line(report: ImportReport, path: Path) -> str:
    """Return a sentence about an import."""
    learned = (
        f"{counted(report.num_conversations, 'conversation')} with "
        f"{counted(report.num_answers, 'answer')} of {counted(report.num_answer_tokens, 'token')}"
    )
    kept = report.kept
    left_out = f"; {kept.num_documents_left_out:,} did not fit" if kept.num_documents_left_out else ""
    held = f"{counted(kept.num_documents, 'text')} of {counted(kept.num_tokens, 'token')}"
    return (
        f"Learned {learned}. Tenant {report.tenant!r} has {held}, {size(kept.num_bytes)} in {path}{left_out}."
    )


# Erasing -------------------------------------------------------------------------------------


def files_to_erase(path: Path, tenant: str) -> list[Path]:
    """Return the files that erasing a tenant removes.

    Raises:
        DataError: there are none, or no such folder.
    """
    files = files_of_tenant(path, tenant)
    if not files:
        raise nothing_kept(path, tenant)
    return files


def nothing_kept(path: Path, tenant: str) -> DataError:
    """Return the error for a tenant without texts in a folder; it suggests the nearest name."""
    known = tenants_of(path)
    guess = did_you_mean(tenant, known) or "."
    number = counted(len(known), "tenant")
    return DataError(f"{path} holds nothing of tenant {tenant!r}{guess} It has {number}.")
