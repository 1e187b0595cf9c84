"""The base of all sections of the settings tree."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A frozen part of the settings tree; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _are_urls(value: tuple[str, ...]) -> tuple[str, ...]:
    for url in value:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not a URL; write it as http://localhost:8000/v1")
    return value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
"""Several texts; a single one may be given as text."""
BaseUrls: TypeAlias = Annotated[Names, AfterValidator(_are_urls)]
"""Servers that hold the same model."""
