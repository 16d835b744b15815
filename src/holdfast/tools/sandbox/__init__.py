"""Where custom tools run: a fork server that forks an isolated child for every call."""
