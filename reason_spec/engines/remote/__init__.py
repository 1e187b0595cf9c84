"""Models behind a URL, on any server with OpenAI's completions interface."""
