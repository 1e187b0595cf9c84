"""Where a framework is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from reason_spec.errors import MissingDependencyError

WRAPPERS = {
    "smolagents": "smolagents",
    "smolagents_tools": "smolagents",
    "openai_agents_tools": "agents",
    "langchain": "langchain_core",
    "langchain_tools": "langchain_core",
    "pydantic_ai": "pydantic_ai",
    "pydantic_ai_tools": "pydantic_ai",
    "litellm": "litellm",
    "inspect_ai": "inspect_ai",
}
EXTRAS = {"inspect_ai": "inspect"}


@pytest.mark.parametrize(("module", "package"), WRAPPERS.items())
def test_a_wrapper_without_its_framework_says_how_to_install_it(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"reason_spec.integrations.{module}", raising=False)
    extra = EXTRAS.get(module, module.removesuffix("_tools").replace("_", "-"))
    with pytest.raises(MissingDependencyError, match=rf"pip install 'reason-spec\[{extra}\]'"):
        importlib.import_module(f"reason_spec.integrations.{module}")
