"""The 25 places in which keys and numbers are tested."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

__all__ = ["PLACES"]


def _frame(text: str) -> Callable[[str], str]:
    return lambda key: text.replace("{}", key)


PLACES: Final[dict[str, Callable[[str], str]]] = {
    "alone": _frame("{}"),
    "prose": _frame("Use {} for that, please."),
    "end of a sentence": _frame("The new one is {}."),
    "quotes": _frame('client = Client("{}")'),
    "single quotes": _frame("connect('{}', 3)"),
    "backticks": _frame("Run it with `{}` again"),
    "brackets": _frame("[first, ({})]"),
    "markup": _frame("<td>{}</td>"),
    "attribute": _frame('<input type="hidden" value="{}"/>'),
    "a line of its own": _frame("before\n{}\nafter"),
    "windows line": _frame("before\r\n{}\r\nafter"),
    "csv": _frame("7,{},2026-11-21\n"),
    "tabs": _frame("7\t{}\t2026-11-21\n"),
    "table": _frame("| 7 | {} | yes |"),
    "header": _frame("X-Request-Thing: {}\r\nAccept: */*\r\n"),
    "option": _frame("tool --thing {} --verbose"),
    "variable": _frame("THING={} ./run.sh"),
    "yaml": _frame("  thing: {}\n  other: 1\n"),
    "log": _frame("2026-11-21T09:30:00Z INFO [main] thing={} status=200"),
    "JSON": lambda key: json.dumps({"a": [{"thing": key, "n": 1}]}),
    "JSON in JSON": lambda key: json.dumps({"arguments": json.dumps({"thing": f"see {key}"})}),
    "URL": lambda key: f"https://service.test/v1/a?thing={quote(key, safe='')}&n=1",
    "percent-encoded": lambda key: quote(f"see {key} there"),
    "colour": _frame("\x1b[32m{}\x1b[0m"),
    "base64": lambda key: base64.b64encode(f"This is what was sent there: {key}\n".encode()).decode(),
}
assert len(PLACES) == 25
