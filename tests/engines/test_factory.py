"""What is refused before an engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from reason_spec.engines.factory import create_engine
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings


@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_a_folder_that_is_not_there_is_named(kind: Literal["torch", "vllm"], tmp_path: Path) -> None:
    settings = EngineSettings(kind=kind, model=str(tmp_path / "nowhere"))
    with pytest.raises(EngineError, match=r"'draft': there is no model at '.*nowhere'"):
        create_engine("draft", settings)


def test_the_id_of_a_model_is_left_to_the_engine() -> None:
    assert create_engine("draft", EngineSettings(model="someone/some-model")).name == "draft"
