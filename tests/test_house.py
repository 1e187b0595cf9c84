"""The shape of the project itself: links, names, imports, and what it must not mention."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "reason_spec"
ROOMS = ("routers", "verifiers", "tasks")
LINKED = [room for room in ROOMS if (ROOT / room).is_dir()]
HEAVY = {"torch", "transformers", "sentence_transformers", "sklearn", "scipy", "math_verify", "sympy", "vllm"}


def project_files() -> list[Path]:
    """All files that belong to the project: tracked ones, and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = {name for name in listing.stdout.decode().split("\0") if name}
    return sorted(path for path in (ROOT / name for name in names) if path.is_symlink() or path.is_file())


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and not path.is_symlink()]


def shipped_modules() -> Iterator[Path]:
    """Yield the source files of the package, each once, under its place in the tree."""
    for path in python_files():
        first = path.relative_to(ROOT).parts[0]
        if first in ("reason_spec", *ROOMS):
            yield path


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def run_python(code: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


# Links and names -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKED)
def test_package_reaches_what_stands_at_the_root(name: str) -> None:
    link = PACKAGE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve(strict=True) == ROOT / name


def test_every_link_is_relative_and_stays_inside() -> None:
    links = [path for path in project_files() if path.is_symlink()]
    assert links
    for link in links:
        assert not link.readlink().is_absolute(), link
        assert link.resolve(strict=True).is_relative_to(ROOT), link


def test_no_file_imports_a_room_by_its_top_level_name() -> None:
    forbidden = {*ROOMS, "cli"}
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in python_files()
        for module in imported_modules(path)
        if module.split(".")[0] in forbidden
    ]
    assert wrong == []


def test_rooms_are_importable_through_the_package_alone(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "import reason_spec.routers, reason_spec.tasks, reason_spec.verifiers\n"
        "for name in sys.argv[2:]:\n"
        "    spec = importlib.util.find_spec(name)\n"
        "    found = [spec.origin or '', *(spec.submodule_search_locations or [])] if spec else []\n"
        "    if any(place.startswith(sys.argv[1]) for place in found): print(name)\n"
    )
    result = run_python(code, str(ROOT), *ROOMS, "cli", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def test_every_public_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in shipped_modules()
        if ast.get_docstring(ast.parse(path.read_bytes())) is None
    ]
    assert silent == []


def test_no_file_has_marks_of_a_merge_conflict() -> None:
    marks = re.compile(rb"^(?:<{7}|>{7}|\|{7})(?: |$)", re.MULTILINE)
    files = [path for path in project_files() if path.is_file() and not path.is_symlink()]
    marked = [str(path.relative_to(ROOT)) for path in files if marks.search(path.read_bytes())]
    assert marked == []


def test_links_in_the_documentation_lead_somewhere() -> None:
    broken = []
    for page in project_files():
        if page.suffix != ".md" or page.is_symlink():
            continue
        targets = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
        lost = [name for name in targets if "://" not in name and not (page.parent / name).exists()]
        broken += [f"{page.relative_to(ROOT)}: {name}" for name in lost]
    assert broken == []


def test_the_map_in_the_architecture_page_is_that_of_the_imports() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/import_map.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


# Imports -------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy() -> None:
    result = run_python(f"import sys, reason_spec; print(*{HEAVY} & sys.modules.keys())")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("solve", "--help"), ("doctor", "--help")]
)
def test_asking_for_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from reason_spec.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as error: status = error.code\n"
        f"print(*{HEAVY} & sys.modules.keys(), file=sys.stderr)\n"
        "sys.exit(status)"
    )
    result = run_python(code, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr.split() == []
    assert result.stdout.strip()


def test_every_imported_package_is_declared() -> None:
    requirements = [Requirement(line) for line in importlib.metadata.requires("reason-spec") or []]
    declared = {canonicalize_name(requirement.name) for requirement in requirements}
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)}: {top}"
        for path in shipped_modules()
        for top in {module.split(".")[0] for module in imported_modules(path)}
        if top in providers
        and top != "reason_spec"
        and declared.isdisjoint(canonicalize_name(provider) for provider in providers[top])
    }
    assert undeclared == set()


def test_nothing_but_torch_itself_can_bring_cuda_packages() -> None:
    seen: set[str] = set()
    waiting = [("reason-spec", "dev"), ("reason-spec", "")]
    while waiting:
        name, extra = waiting.pop()
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # behind a marker of another platform
        for requirement in map(Requirement, lines):
            child = canonicalize_name(requirement.name)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            if child not in seen and child != "torch":
                seen.add(child)
                waiting += [(child, ""), *((child, wanted) for wanted in requirement.extras)]
    assert {"transformers", "sentence-transformers", "sympy"} <= seen
    assert [name for name in sorted(seen) if re.match(r"nvidia-|cuda-|triton$|torchvision$", name)] == []


# What the project must not mention -----------------------------------------------------------

ABSOLUTE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:work|root|home|Users)/")
REGISTRY_HOST = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs")


@pytest.mark.parametrize("pattern", [ABSOLUTE_PATH, REGISTRY_HOST], ids=["absolute path", "registry host"])
def test_no_file_names_a_place_of_some_machine(pattern: re.Pattern[str]) -> None:
    found = []
    for path in project_files():
        if path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), start=1)
        found += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if pattern.search(line)]
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert ABSOLUTE_PATH.search("open('{0}home{0}me/file')".format("/"))
    assert not ABSOLUTE_PATH.search("https://example.com/home/page")
    assert REGISTRY_HOST.search("https://pypi{}org/simple".format("."))
