"""What finished runs show, as one page, as pictures and as tables in files."""

from __future__ import annotations
