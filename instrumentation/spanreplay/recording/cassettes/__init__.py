"""Cassettes of vcrpy, betamax and responses: recorded HTTP exchanges as plain values."""

from spanreplay.recording.cassettes.formats import is_cassette, read_cassette
from spanreplay.recording.cassettes.interaction import Cassette, Interaction

__all__ = ["Cassette", "Interaction", "is_cassette", "read_cassette"]
