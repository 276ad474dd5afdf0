"""The program's own OpenTelemetry: its providers stay unchanged, and its spans are heard."""
