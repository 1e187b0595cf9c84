"""Build the wheel and the source archive of each distribution of this repository, with hatchling alone.

    python scripts/build_packages.py --output dist [--version 1.2.3]

``--version`` writes the version of reason-spec into its code, as a release does with its tag. The two
distributions of weights have versions of their own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (ROOT, ROOT / "reason-spec-models", ROOT / "reason-spec-weights")


def hatchling(project: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", *arguments], cwd=project, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    parser.add_argument("--version", help="version of reason-spec (default: that of its code)")
    options = parser.parse_args()
    if options.version:
        hatchling(ROOT, "version", options.version)
    for project in PROJECTS:
        hatchling(project, "build", "-d", str(options.output.resolve()), "-t", "wheel", "-t", "sdist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
