"""Which models there are: listed, described, priced, and opened."""
