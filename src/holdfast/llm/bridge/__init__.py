"""Vendors reached through pydantic-ai's model layer. Slow to import: only `llm/pydantic_ai.py` may, on first use."""
