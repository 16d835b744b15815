"""The chat-completions protocol, and the dialects of those who speak it."""
