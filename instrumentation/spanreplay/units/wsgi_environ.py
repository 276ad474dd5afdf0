"""The environ of a WSGI request as values that can be recorded, and back. Pure functions.

The values have the names of an ASGI scope. Everything else the server states about a request (its own variables,
`wsgi.*`) is under `environ`, except process variables, which some servers add.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final
from wsgiref.util import FileWrapper

__all__ = ["build_environ", "describe_environ", "is_of_file"]

_BY_NAME: Final = {
    "method": "REQUEST_METHOD",
    "scheme": "wsgi.url_scheme",
    "root_path": "SCRIPT_NAME",
    "query_string": "QUERY_STRING",
    "protocol": "SERVER_PROTOCOL",
}
_PLACES: Final = {"client": ("REMOTE_ADDR", "REMOTE_PORT"), "server": ("SERVER_NAME", "SERVER_PORT")}
_BARE_HEADERS: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
_HEADER: Final = "HTTP_"
_FILES: Final = "wsgi.file_wrapper"
_STATED: Final = frozenset({*_BY_NAME.values(), *_BARE_HEADERS, *(key for keys in _PLACES.values() for key in keys)})


def describe_environ(environ: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Describe a request's environ: the parts that come from the client or the server.

    `variables` are the process's environment variables.
    """
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    found: dict[str, Any] = {"type": "http", "path": _to_text(path)}
    found |= {name: str(environ[key]) for name, key in _BY_NAME.items() if key in environ}
    for name, keys in _PLACES.items():
        found |= {name: [str(environ[key]) for key in keys if key in environ]}
    found["headers"] = [
        {_to_header(key): str(value)}
        for key, value in environ.items()
        if key.startswith(_HEADER) or (key in _BARE_HEADERS and value)
    ]
    found["environ"] = {
        key: value
        for key, value in environ.items()
        if isinstance(value, (str, bool, int))
        and not (key in _STATED or key.startswith(_HEADER))
        and variables.get(key) != value
    }
    if _FILES in environ:
        found["has_files"] = True
    if any(environ.get(key) == value for key, value in variables.items()):
        found["has_variables"] = True
    return found


def is_of_file(result: object, environ: Mapping[str, Any]) -> bool:
    """Whether a response is a file, which each server splits into parts of its own size."""
    wrapper = environ.get(_FILES)
    return isinstance(wrapper, type) and isinstance(result, wrapper)


def build_environ(described: Mapping[str, Any], body: Any, variables: Mapping[str, str]) -> dict[str, Any]:
    """Build an environ as the server would; `body` is the file with the request's body.

    `variables` are the process's environment variables.
    """
    environ: dict[str, Any] = dict(variables) if described.get("has_variables") else {}
    environ |= described.get("environ", {})
    environ |= {key: described[name] for name, key in _BY_NAME.items() if name in described}
    for name, keys in _PLACES.items():
        environ |= dict(zip(keys, described.get(name, ()), strict=False))
    for header in described.get("headers", ()):
        environ |= {_to_key(name): value for name, value in header.items()}
    if described.get("has_files"):
        environ[_FILES] = FileWrapper
    return {**environ, "wsgi.version": (1, 0), "wsgi.input": body, "wsgi.errors": sys.stderr}


def _to_text(path: str) -> str:
    """Decode a WSGI path, which holds bytes as Latin-1 text."""
    try:
        return path.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return path


def _to_header(key: str) -> str:
    return key.removeprefix(_HEADER).replace("_", "-").lower()


def _to_key(name: str) -> str:
    key = name.replace("-", "_").upper()
    return key if key in _BARE_HEADERS else f"{_HEADER}{key}"
