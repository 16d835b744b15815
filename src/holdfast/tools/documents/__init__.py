"""Reads documents and searches texts that may be hostile: in processes of their own, within limits."""
