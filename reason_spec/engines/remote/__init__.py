"""Engines behind a URL: any server with OpenAI's completions interface."""
