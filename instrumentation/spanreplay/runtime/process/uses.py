"""The recorded variables that a request uses."""

from __future__ import annotations

from typing import NamedTuple


class Uses(NamedTuple):
    """Variables, or files, of the recording that a request uses; '' for none."""

    server: str
    """The variable that names the request's server."""
    credential: str
    """The variable for the token in a credentials header; such a header is not recorded."""
