"""Where custom tools run: a warm process that forks a walled-off child for every call."""
