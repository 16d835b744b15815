"""The offline model: needs no network, and does what a message tells it to."""
