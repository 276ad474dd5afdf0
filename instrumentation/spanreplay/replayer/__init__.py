"""Replays a run in the agent's process: source, plan, resolution, divergence, verdict, guard."""
