"""Receives OTLP, stores runs, feeds Phoenix."""
