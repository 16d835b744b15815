"""Tools of MCP servers. Only `client`, `stdio` and `oauth` import the SDK, and they are loaded on first use."""
