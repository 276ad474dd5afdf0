"""The program's own OpenTelemetry: its providers stay as they are, and its spans are heard."""
