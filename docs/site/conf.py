"""Sphinx: the pages of this repository as a site with search. They are for GitHub as well, in CommonMark.

`make docs` runs it from the root of the repository, so links to files outside this folder hold.
"""

from __future__ import annotations

project = "reason-spec"
project_copyright = "the reason-spec developers"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**",
    "reason-spec-models/README.md",
    "reason-spec-weights/README.md",
]

# Anchors as GitHub makes them; a link to one that does not exist is an error.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Shell sessions with placeholders are not always what a lexer expects.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "reason-spec"
html_copy_source = False
# The way from the root of the site to its first page.
html_extra_path = ["root"]
html_show_sphinx = False
