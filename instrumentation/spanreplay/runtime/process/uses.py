"""The recorded variables that a request uses."""

from __future__ import annotations

from typing import NamedTuple


class Uses(NamedTuple):
    """Variables, or files, of the recording that a request uses; '' for none."""

    server: str
    """What names the server that it goes to."""
    credential: str
    """What the token in a header of credentials stands for; such a header is not written down."""
