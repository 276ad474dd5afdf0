"""JSON text as recordings hold it: compact, not escaped to ASCII."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

# One encoder for all: json.dumps with other than its defaults makes a new one at every call
dump: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
dump_ascii: Final[Callable[[Any], str]] = json.JSONEncoder(separators=(",", ":")).encode
