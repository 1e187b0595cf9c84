"""Draw the map of the package in docs/architecture.md from its imports.

    python scripts/import_map.py            # print the map
    python scripts/import_map.py --write    # put it into docs/architecture.md

Nodes are the modules and packages directly below `reason_spec`. An arrow A --> B means that A imports B and
reaches it by no other path. Modules that most others import (`COMMON`) are left out.
"""

from __future__ import annotations

import argparse
import re
from itertools import product
from pathlib import Path

import grimp

PACKAGE = "reason_spec"
COMMON = {"types", "errors", "loading", "shipped", "jsonl"}
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def imports_between_rooms() -> dict[str, set[str]]:
    """Return, for each node, the other nodes that it imports."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    rooms = {child.removeprefix(f"{PACKAGE}.") for child in graph.find_children(PACKAGE)}
    rooms -= COMMON | {"__main__"}
    for room in rooms:
        graph.squash_module(f"{PACKAGE}.{room}")
    imports = {room: graph.find_modules_directly_imported_by(f"{PACKAGE}.{room}") for room in rooms}
    return {
        room: {name.removeprefix(f"{PACKAGE}.") for name in found} & rooms - {room}
        for room, found in imports.items()
    }


def reduced(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the edges of the transitive reduction."""
    reach = {room: set(found) for room, found in imports.items()}
    for middle, start in product(imports, imports):
        if middle in reach[start]:
            reach[start] |= reach[middle]
    return {
        (room, other)
        for room, found in imports.items()
        for other in found
        if not any(other in reach[between] for between in found - {other})
    }


def draw() -> str:
    """Return the map as a Mermaid flow chart."""
    edges = sorted(reduced(imports_between_rooms()))
    lines = "\n".join(f"    {room} --> {other}" for room, other in edges)
    return f"```mermaid\nflowchart TD\n{lines}\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the map of the package from its imports.")
    parser.add_argument("--write", action="store_true", help="put the map into docs/architecture.md")
    if not parser.parse_args().write:
        print(draw(), end="")
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda _: draw(), page, count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
