"""The report of finished runs: one HTML page, figures, and tables in files."""

from __future__ import annotations
