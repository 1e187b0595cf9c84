"""The suffix cache: what was said before, and what came next. It proposes tokens and whole steps."""
