"""The recipes by URL, as they stand, against a real server: text on the pair, tools on the script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("smolagents")
pytestmark = pytest.mark.agents

from tests.server.processes import ROOT, ServeProcess

RECIPES = sorted(path.stem for path in (ROOT / "examples" / "agents").glob("*.py"))
# CrewAI's pins clash with LiteLLM's: it has an environment of its own.
CREWAI_PYTHON = os.environ.get("CREWAI_PYTHON")
ANSWER = "It is 21 degrees in Paris."


def run(recipe: str, server: ServeProcess, folder: Path, *arguments: str) -> str:
    python = sys.executable
    if recipe == "crewai_crew":
        if CREWAI_PYTHON is None:
            pytest.skip("CREWAI_PYTHON names no interpreter with CrewAI")
        python = CREWAI_PYTHON
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "MODEL": "says",
        # What frameworks keep of their own goes here too.
        "HOME": str(folder),
    }
    result = subprocess.run(
        [python, str(ROOT / "examples" / "agents" / f"{recipe}.py"), *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gets_the_pairs_answer(recipe: str, pair_server: ServeProcess, tmp_path: Path) -> None:
    said = run(recipe, pair_server, tmp_path)
    assert "answer: " in said
    assert "17" in said
    if recipe != "dspy_program":
        assert "streamed" in said


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_completes_a_loop_with_a_tool(
    recipe: str, scripted_server: ServeProcess, tmp_path: Path
) -> None:
    said = run(recipe, scripted_server, tmp_path, "--tools")
    assert f"answer: {ANSWER}" in said
    assert said.count(ANSWER) + said.count("streamed call: temperature") >= 2
