"""Starts the ``reason-spec`` command, also as ``python -m reason_spec``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt while its modules are still being imported is no crash."""
    try:
        from reason_spec.cli.main import main as run_cli

        run_cli()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
