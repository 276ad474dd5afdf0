"""Finds whose code calls: the agent, a framework, a library, or spanreplay itself."""
