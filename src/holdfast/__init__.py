"""Holdfast: the server for stateful LLM agents that people can stop, approve and trust."""
