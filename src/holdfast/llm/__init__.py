"""Vendors. Each file: request out, deltas in."""
