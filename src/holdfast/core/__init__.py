"""Decides. No I/O, no clock, no randomness, no async: values in, values out."""
