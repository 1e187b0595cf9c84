"""Tool calls ahead of the model: which call comes next, and running it before the model has written it."""
