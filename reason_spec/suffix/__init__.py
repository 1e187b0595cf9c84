"""The suffix cache: an index of earlier texts that proposes the next tokens and steps."""
