"""Codecs of pydantic models, so also of LangChain messages and documents, MCP results and SDK types.

The fields are walked, not dumped, so nested values keep their types; on decode the state is put back without
validators. pydantic is never imported from here: a model can only exist where it is loaded.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from spanreplay.canonical import Refused
from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import class_path, load_class
from spanreplay.codec._objects import restore_fields

__all__ = ["PYDANTIC", "PYDANTIC_V1", "SECRET", "URL"]


def _known(module: str, name: str) -> type:
    """A class of a loaded module, else one that nothing inherits from."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else _Nothing


class _Nothing:
    pass


_ANY: Final = "typing:Any"
"""A class from Python 3.11 on only."""


# ── pydantic 2 ──────────────────────────────────────────────────────────────────────────────────────
def _is_model(kind: type) -> bool:
    return issubclass(kind, _known("pydantic.main", "BaseModel")) and hasattr(kind, "model_fields")


def _pack_model(value: Any, enc: Encoder) -> dict[str, Any]:
    packed = _pack_model_class(type(value))
    packed["fields"] = enc.members(value.__dict__)
    packed["set"] = sorted(value.__pydantic_fields_set__)
    if value.__pydantic_extra__ is not None:
        packed["extra"] = enc.encode(dict(value.__pydantic_extra__))
    if value.__pydantic_private__:
        packed["private"] = enc.members(value.__pydantic_private__)
    elif value.__pydantic_private__ is not None:
        packed["private"] = {}
    return packed


def _pack_model_class(cls: type) -> dict[str, Any]:
    generic = getattr(cls, "__pydantic_generic_metadata__", None) or {}
    origin = generic.get("origin")
    if origin is None:
        return {"class": class_path(cls)}
    arguments = generic.get("args", ())
    if not all(isinstance(each, type) or each is Any for each in arguments):
        raise Refused(f"{cls.__module__}.{cls.__qualname__}, a generic model whose arguments are no classes")
    return {"class": class_path(origin), "args": [_ANY if each is Any else class_path(each) for each in arguments]}


def _unpack_model(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls: Any = load_class(encoded["class"])
    if not _is_model(cls):
        raise Refused(f"{encoded['class']}, which is no pydantic model")
    if encoded.get("args"):
        cls = cls[tuple(Any if each == _ANY else load_class(each) for each in encoded["args"])]
    fields = dec.members(encoded["fields"])
    built = object.__new__(cls)
    state: dict[str, Any] = {
        "__dict__": fields,
        "__pydantic_fields_set__": {str(name) for name in encoded["set"]},
        "__pydantic_extra__": dec.decode(encoded.get("extra")),
        "__pydantic_private__": dec.members(encoded["private"]) if "private" in encoded else None,
    }
    restore_fields(built, state)
    return built


# ── pydantic 1, also as pydantic.v1 ─────────────────────────────────────────────────────────────────
def _is_model_v1(kind: type) -> bool:
    bases = (_known("pydantic.v1.main", "BaseModel"), _known("pydantic.main", "BaseModel"))
    return issubclass(kind, bases) and not hasattr(kind, "model_fields")


def _pack_model_v1(value: Any, enc: Encoder) -> dict[str, Any]:
    private = {name: getattr(value, name) for name in value.__private_attributes__ if hasattr(value, name)}
    return {
        "class": class_path(type(value)),
        "fields": enc.members(value.__dict__),
        "set": sorted(value.__fields_set__),
        "private": enc.members(private),
    }


def _unpack_model_v1(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls: Any = load_class(encoded["class"])
    if not _is_model_v1(cls):
        raise Refused(f"{encoded['class']}, which is no pydantic 1 model")
    private = dec.members(encoded["private"])
    if not private.keys() <= set(cls.__private_attributes__):
        raise Refused(f"{encoded['class']}, whose private attributes are others now")
    built = object.__new__(cls)
    fields_set = {str(name) for name in encoded["set"]}
    restore_fields(built, {"__dict__": dec.members(encoded["fields"]), "__fields_set__": fields_set})
    restore_fields(built, private)
    return built


# ── secrets and URLs ────────────────────────────────────────────────────────────────────────────────
_MASK: Final = "**********"


def _is_secret(kind: type) -> bool:
    return kind in _secret_types()


def _secret_types() -> tuple[type, ...]:
    return tuple(
        _known(module, name)
        for module in ("pydantic.types", "pydantic.v1.types")
        for name in ("SecretStr", "SecretBytes")
    )


def _pack_secret(value: Any, _: Encoder) -> dict[str, Any]:
    # The type says that this must never be written down; so neither recording nor key has it.
    return {"class": class_path(type(value))}


def _unpack_secret(encoded: dict[str, Any], _: Decoder) -> Any:
    cls = load_class(encoded["class"])
    if cls is _Nothing or not _is_secret(cls):
        raise Refused(f"{encoded['class']}, which is no pydantic secret")
    return cls(_MASK.encode() if cls.__name__ == "SecretBytes" else _MASK)


def _is_url(kind: type) -> bool:
    return issubclass(kind, (_known("pydantic.networks", "_BaseUrl"), _known("pydantic_core", "Url")))


def _pack_url(value: Any, enc: Encoder) -> dict[str, Any]:
    return {"class": class_path(type(value)), "value": enc.encode(str(value))}


def _unpack_url(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls = load_class(encoded["class"])
    if not _is_url(cls):
        raise Refused(f"{encoded['class']}, which is no pydantic URL")
    return cls(str(dec.decode(encoded["value"])))


PYDANTIC: Final = Row("pydantic", _is_model, _pack_model, _unpack_model)
PYDANTIC_V1: Final = Row("pydantic1", _is_model_v1, _pack_model_v1, _unpack_model_v1)
SECRET: Final = Row("secret", _is_secret, _pack_secret, _unpack_secret)
URL: Final = Row("url", _is_url, _pack_url, _unpack_url)
