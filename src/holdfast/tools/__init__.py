"""What an agent can call, and where it runs."""
