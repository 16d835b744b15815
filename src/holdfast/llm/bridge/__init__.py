"""Vendors reached through pydantic-ai's model layer. Slow to import: only `catalog/adapters.py` may, on first use."""
