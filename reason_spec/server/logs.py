"""The log: one JSON object a line, with ids, counts and hashes, and no text of prompts or answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

ACCESS = "reason_spec.access"
_LOGGERS = ("reason_spec", "uvicorn", "asyncio", "py.warnings")
_FIELDS = "fields"
_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record; ``log`` adds fields."""

    def __init__(self, *, with_values: bool = False) -> None:
        """``with_values``: also write messages of exceptions, which may quote prompts."""
        super().__init__()
        self._with_values = with_values

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        line |= getattr(record, _FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            _, error, trace = record.exc_info
            line["error"] = type(error).__name__
            # Places alone, without values.
            frames = traceback.extract_tb(trace)
            line["trace"] = [f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames]
            if self._with_values:
                line["error_message"] = str(error)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(*, with_values: bool = False) -> None:
    """Write the logs of the server and its libraries to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(with_values=with_values))
    logging.captureWarnings(True)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("reason_spec").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def log(logger: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Write a line with fields; None values are left out."""
    kept = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, message, extra={_FIELDS: kept})


def harmless(text: str | None) -> str | None:
    """Return a text of a client if it is safe in a log, else None."""
    return text if text is not None and _HARMLESS.fullmatch(text) else None


class Fingerprint:
    """Keyed hashes of texts: equal texts have equal hashes.

    The key ends with the process, so that guessed texts cannot be found by their hashes later.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, text: bytes) -> str:
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:16]
