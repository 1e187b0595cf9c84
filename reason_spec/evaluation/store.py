"""The output folder of a run: results that survive a kill, and settings that they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml
from filelock import FileLock

import reason_spec
from reason_spec.engines.weights import WeightDigests, digest_weights
from reason_spec.errors import DataError, ResumeError
from reason_spec.evaluation.outcome import Outcome, UnitKey, settings_for
from reason_spec.evaluation.prompts import prompt_style
from reason_spec.evaluation.records import (
    FRESH,
    LOCK,
    OTHER_FOLDER,
    RecordFile,
    lock_folder,
    other_or_fresh,
    read_records,
    write_text,
    writing,
)
from reason_spec.evaluation.timeline import TIMELINES
from reason_spec.settings import Settings
from reason_spec.settings.tree import identifying
from reason_spec.types import Problem

RESULTS = "results.jsonl"
SUMMARY = "summary.json"
SETTINGS = "settings.yaml"
_PACKAGES = ("torch", "transformers", "sentence-transformers", "math-verify")
_SETTING_OF = {
    "target": "target.model",
    "draft": "draft.model",
    "verifier": "verifier.embedding_model",
    "router": "router.file",
    "semantic": "verifier.semantic_model",
    "reward": "verifier.reward_model",
    "judge": "verifier.judge.model",
    "exit_policy": "exit.policy",
    "drafter": "target.drafter",
    "token_judge": "target.torch.judge",
}
"""Settings that name the files of `WeightDigests`."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """The number of problems of a run, and a hash over their ids, questions, answers and tasks."""

    num_problems: int
    sha256: str

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> ProblemSet:
        digest = hashlib.sha256()
        for problem in problems:
            record = [problem.id, problem.question, problem.answer, problem.task]
            digest.update(json.dumps(record).encode() + b"\n")
        return cls(len(problems), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Identity:
    """The values that must be equal for two runs to share a folder.

    Strategies, samples and the number of problems may grow; the strategy's name is therefore left
    out of ``settings``, and the problem set of an earlier run must be the beginning of a later one.
    ``weights`` distinguishes models of the same name whose files are on this machine.
    """

    settings: Settings
    weights: WeightDigests
    prompt: str
    concurrency: int
    problems: ProblemSet

    @classmethod
    def of(cls, settings: Settings, problems: Sequence[Problem], concurrency: int) -> Identity:
        """Read the model files of this machine and put the identity of a run together.

        Raises:
            DataError: a model file cannot be read.
        """
        digests = digest_weights(settings)
        return cls(settings, digests, prompt_style(settings), concurrency, ProblemSet.of(problems))

    @property
    def hash(self) -> str:
        """Equal for runs of equal settings and weights with any strategies; names the default folder."""
        settings_hash = settings_for(self.settings, "").hash
        canonical = [settings_hash, asdict(self.weights), self.prompt, self.concurrency]
        return hashlib.sha256(json.dumps(canonical).encode()).hexdigest()[:8]


class RunFolder:
    """An output folder, locked while it is open.

    ``results.jsonl`` grows by one line for each finished answer, written through to the disk. A
    last line torn by a kill is dropped when the folder is opened again.

    Args:
        path: created where it does not exist.
        identity: settings, models and problems of the results.
        problems: the problems of this run, in their order.
        fresh: replace the results of an earlier run; they are kept until ``begin_session``.
        anew: how a user replaces them, for messages.

    Raises:
        DataError: the folder cannot be written.
        ResumeError: another run has it open, or it holds results of other settings or problems.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        problems: Sequence[Problem],
        *,
        fresh: bool = False,
        anew: str = FRESH,
    ) -> None:
        self.path = path
        self._remedy = other_or_fresh(anew=anew)
        self._identity = identity
        self._replaces = fresh
        self._lock: FileLock | None = None
        self._results: RecordFile | None = None
        self._sessions: list[dict[str, Any]] = []
        self._created: list[Path] = []
        self.outcomes: dict[UnitKey, Outcome] = {}
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            self._open(problems)
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; may be called twice. A new folder that got no result is removed."""
        if self._results is not None:
            self._results.close()
        if self._lock is not None:
            if self._created and not self.outcomes and not (self.path / SETTINGS).exists():
                with contextlib.suppress(OSError):
                    for name in (RESULTS, SUMMARY, TIMELINES, LOCK):
                        (self.path / name).unlink(missing_ok=True)
                    for place in self._created:
                        place.rmdir()
            self._lock.release()
        self._results = self._lock = None

    @property
    def results_path(self) -> Path:
        return self.path / RESULTS

    def begin_session(self, name: str, strategies: Sequence[str], details: Mapping[str, Any]) -> None:
        """Write ``settings.yaml`` with one more start of the command; call before the first result.

        Raises:
            DataError: the folder cannot be written.
        """
        if self._replaces:
            self._delete_earlier()
        session: dict[str, Any] = {
            "session": name,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        session |= {"strategies": list(strategies), "versions": package_versions(), **details}
        self._sessions.append(session)
        self._write_settings()

    def end_session(self, details: Mapping[str, Any]) -> None:
        """Add measurements of the last session to ``settings.yaml``.

        Raises:
            DataError: the folder cannot be written.
        """
        if details:
            self._sessions[-1] |= details
            self._write_settings()

    def latest(self, detail: str) -> Any:
        """Return a detail of the last session that has it; None where none has."""
        return next((session[detail] for session in reversed(self._sessions) if detail in session), None)

    def _write_settings(self) -> None:
        identity = self._identity
        content = {
            "settings": identity.settings.model_dump(mode="json"),
            "settings_hash": identity.settings.hash,
            "weights": asdict(identity.weights),
            "prompt": identity.prompt,
            "concurrency": identity.concurrency,
            "problems": asdict(identity.problems),
            "sessions": self._sessions,
        }
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_text(self.path / SETTINGS, text)

    def append(self, outcome: Outcome) -> None:
        """Store an outcome; it survives a kill from the moment this returns.

        Raises:
            DataError: it cannot be written.
        """
        assert self._results is not None, "the folder is closed, or begin_session was not called"
        assert outcome.key not in self.outcomes, f"{outcome.key} is stored twice"
        self._results.append(outcome.to_json())
        self.outcomes[outcome.key] = outcome

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        write_text(self.path / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    def _open(self, problems: Sequence[Problem]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise DataError(f"{self.path}: cannot be written (it is not a folder). {OTHER_FOLDER}")
        with writing(self.path):
            self._created = [place for place in (self.path, *self.path.parents) if not place.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
        if self._replaces:
            return  # a run that cannot start must not cost the results of the one before it
        earlier = read_run_settings(self.path / SETTINGS, self._remedy)
        if earlier is None and self.results_path.is_file() and self.results_path.stat().st_size:
            raise ResumeError(f"{self.path} holds results without their {SETTINGS}. {self._remedy}")
        # Opening drops a torn last line, which must be one of ours.
        self._results = RecordFile(self.results_path)
        self._resume(earlier, problems)

    def _delete_earlier(self) -> None:
        with writing(self.path):
            for name in (RESULTS, SUMMARY, TIMELINES, SETTINGS):
                (self.path / name).unlink(missing_ok=True)
        self._results = RecordFile(self.results_path)
        self._replaces = False

    def _resume(self, earlier: Mapping[str, Any] | None, problems: Sequence[Problem]) -> None:
        """Read the results of an earlier start of the command.

        Raises:
            ResumeError: it does not belong to this run.
        """
        for outcome in read_outcomes(self.results_path, self._remedy):
            if outcome.key in self.outcomes:
                raise ResumeError(f"{self.results_path} holds {outcome.key} twice. {self._remedy}")
            self.outcomes[outcome.key] = outcome
        if earlier is None or not self.outcomes:
            return
        differences = _differences(earlier, self._identity)
        if differences:
            raise ResumeError(
                f"{self.path} holds a run of other settings: {'; '.join(differences)}. {self._remedy}"
            )
        self._check_problems(earlier["problems"], problems)
        self._sessions = list(earlier["sessions"])

    def _check_problems(self, earlier: Mapping[str, Any], problems: Sequence[Problem]) -> None:
        known = ProblemSet(earlier["num_problems"], earlier["sha256"])
        if len(problems) >= known.num_problems:
            if ProblemSet.of(problems[: known.num_problems]) != known:
                raise ResumeError(
                    f"{self.path} holds a run of other problems: {self._changed(problems)}. {self._remedy}"
                )
            return
        # Fewer problems than before: each must equal the earlier one at its index.
        for outcome in self.outcomes.values():
            if outcome.index < len(problems) and not _is_about(outcome, problems[outcome.index]):
                raise ResumeError(
                    f"{self.path} holds a run of other problems: {self._changed(problems)}. {self._remedy}"
                )
        self._identity = replace(self._identity, problems=known)

    def _changed(self, problems: Sequence[Problem]) -> str:
        by_id = {problem.id: problem for problem in problems}
        for outcome in self.outcomes.values():
            problem = by_id.get(outcome.id)
            if problem is None:
                return f"its problem {outcome.id!r} is not among those given"
            if not _is_about(outcome, problem):
                return f"problem {outcome.id!r} has another question, answer or task"
        return "their order or number differs"


def read_outcomes(path: Path, remedy: str | None = None) -> Iterator[Outcome]:
    """Yield the outcomes of a results file in order; a missing file has none.

    Raises:
        ResumeError: a line is damaged; the message names it.
    """
    for _, outcome in read_records(path, Outcome.from_json, ResumeError, remedy or other_or_fresh()):
        yield outcome


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that determine a run's numbers."""
    versions = {"reason-spec": reason_spec.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _is_about(outcome: Outcome, problem: Problem) -> bool:
    found = (outcome.task, outcome.id, outcome.question, outcome.answer)
    return found == (problem.task, problem.id, problem.question, problem.answer)


def read_run_settings(path: Path, remedy: str) -> dict[str, Any] | None:
    """Return the content of a run folder's settings file; None where there is none.

    Raises:
        ResumeError: it is damaged, or no run wrote it.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ResumeError(f"{path} cannot be read ({error}). {remedy}") from None
    expected = ("settings", "prompt", "concurrency", "problems", "sessions")
    if not isinstance(content, dict) or any(name not in content for name in expected):
        raise ResumeError(f"{path} was not written by a run. {remedy}")
    return content


def _differences(earlier: Mapping[str, Any], identity: Identity) -> list[str]:
    """Return one phrase for each setting and model that differs, except for the strategy's name."""
    before = dict(flattened(identifying(earlier["settings"])))
    now = dict(flattened(identifying(identity.settings.model_dump(mode="json"))))
    before |= {name: earlier[name] for name in ("prompt", "concurrency")}
    now |= {"prompt": identity.prompt, "concurrency": identity.concurrency}
    names = [
        name for name in {**before, **now} if before.get(name) != now.get(name) and name != "strategy.name"
    ]
    changed = [f"{name} was {before.get(name)!r} and is now {now.get(name)!r}" for name in names]
    weights_before = earlier.get("weights") or {}
    for role, digest in asdict(identity.weights).items():
        setting = _SETTING_OF[role]
        if setting not in names and weights_before.get(role) != digest:
            changed.append(
                f"the weights of {setting} = {now[setting]!r} were {_shown(weights_before.get(role))} "
                f"and are now {_shown(digest)}"
            )
    return changed


def _shown(digest: str | None) -> str:
    return "not known" if digest is None else f"sha256 {digest[:12]}..."


def flattened(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree of settings by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
