"""The token level: who guesses the next tokens, and how guesses are checked without loss."""
