"""Configuration files of drafts, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from reason_spec.errors import EngineError

_M = TypeVar("_M", bound=BaseModel)


def read_config_file(place: Path, kind: type[_M], what: str) -> _M:
    """Return the content of a JSON file as a model of pydantic.

    Args:
        what: what has to be trained again if the file is damaged, such as ``the draft``.

    Raises:
        EngineError: it cannot be read; the message names the file and the field.
    """
    try:
        return kind.model_validate_json(place.read_bytes())
    except OSError as error:
        raise EngineError(f"{str(place)!r} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "content"
        raise EngineError(f"{str(place)!r}: {field}: {first['msg']}; train {what} again") from None
