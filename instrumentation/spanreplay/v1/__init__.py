"""Wire contract: `replay.proto` and its generated code."""
