"""Models on any server with OpenAI's completions interface."""
