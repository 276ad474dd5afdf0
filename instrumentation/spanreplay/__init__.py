"""Records what an AI agent did, and replays it byte for byte."""
