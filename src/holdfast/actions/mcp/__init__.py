"""MCP servers: keep them, know their tools, run these by hand, log in."""
