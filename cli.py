"""Run the ``reason-spec`` command from a checkout: ``python cli.py solve --sample``."""

from __future__ import annotations

from reason_spec.__main__ import main

if __name__ == "__main__":
    main()
