"""Tools of MCP servers. Only `client`, `transports` and `oauth` import the SDK, and they are loaded on first use."""
