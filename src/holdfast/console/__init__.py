"""The web console: plain ES modules that talk to the public API only. `api/routes/console.py` serves them."""
