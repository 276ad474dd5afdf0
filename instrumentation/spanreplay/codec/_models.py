"""Codecs of pydantic models, and so of LangChain messages and documents, MCP results and SDK types.

The fields are walked, not dumped, so nested values keep their types; decoding restores the state without running
validators. pydantic is never imported from here: a model can exist only if it is loaded.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row, type_name
from spanreplay.codec._lookup import class_path, library, load_class
from spanreplay.codec._still import ABSENT, fill, find, instance_dict, is_below, loaded_class, namespace_of
from spanreplay.model.canonical import Refused

__all__ = ["PYDANTIC", "PYDANTIC_V1", "SECRET", "URL"]


_ANY: Final = "typing:Any"
"""A class only since Python 3.11."""


# ── pydantic 2 ──────────────────────────────────────────────────────────────────────────────────────
def _is_model(kind: type) -> bool:
    return is_below(kind, loaded_class("pydantic.main", "BaseModel")) and _model_fields(kind) is not None


def _model_fields(kind: type) -> dict[str, Any] | None:
    found = find(kind, "__pydantic_fields__")
    if type(found) is not dict:
        found = find(kind, "model_fields")  # before pydantic 2.10
    return found if type(found) is dict else None


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
        raise Refused(f"{cls.__module__}.{cls.__qualname__}, a generic model whose arguments are not classes")
    return {"class": class_path(origin), "args": [_ANY if each is Any else class_path(each) for each in arguments]}


def _unpack_model(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls: Any = load_class(encoded["class"])
    if not _is_model(cls):
        raise Refused(f"{encoded['class']}, which is not a pydantic model")
    if encoded.get("args"):
        cls = _parametrised(cls, [None if each == _ANY else load_class(each) for each in encoded["args"]])
    extra = dec.members(encoded["extra"]) if "extra" in encoded else None
    private = dec.members(encoded["private"]) if "private" in encoded else None
    if private and not private.keys() <= find(cls, "__private_attributes__", {}).keys():
        raise Refused(f"{encoded['class']}, whose private attributes are others now")
    built = object.__new__(cls)
    fill(built, dec.members(encoded["fields"]), dict.fromkeys(_model_fields(cls) or (), ABSENT))
    for name, value in {
        "__pydantic_fields_set__": {str(name) for name in encoded["set"]},
        "__pydantic_extra__": extra,
        "__pydantic_private__": private,
    }.items():
        find(cls, name).__set__(built, value)  # slots of BaseModel
    return built


def _parametrised(origin: type, arguments: list[type | None]) -> type:
    """Find the generic model with these arguments; None stands for Any.

    Only an existing model is returned: pydantic makes one when the agent's code names it, and runs code of its classes.
    Raises: Refused if there is none.
    """
    wanted = [Any if each is None else each for each in arguments]
    subclasses: list[type] = type.__subclasses__(origin)
    for cls in subclasses:
        generic = namespace_of(cls).get("__pydantic_generic_metadata__") or {}
        given = generic.get("args", ())
        is_of_them = len(given) == len(wanted) and all(map(operator.is_, given, wanted))
        if generic.get("origin") is origin and is_of_them:
            return cls
    raise Refused(f"{type_name(origin)} of other types than this process has used it with")


# ── pydantic 1, also as pydantic.v1 ─────────────────────────────────────────────────────────────────
def _is_model_v1(kind: type) -> bool:
    bases = (loaded_class("pydantic.v1.main", "BaseModel"), loaded_class("pydantic.main", "BaseModel"))
    return is_below(kind, *bases) and type(find(kind, "__fields__")) is dict and not _is_model(kind)


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
        raise Refused(f"{encoded['class']}, which is not a pydantic 1 model")
    private = dec.members(encoded["private"])
    if not private.keys() <= find(cls, "__private_attributes__", {}).keys():
        raise Refused(f"{encoded['class']}, whose private attributes are others now")
    built = object.__new__(cls)
    fill(built, dec.members(encoded["fields"]), dict.fromkeys(find(cls, "__fields__"), ABSENT))
    find(cls, "__fields_set__").__set__(built, {str(name) for name in encoded["set"]})
    fill(built, private, dict.fromkeys(private, ABSENT))
    return built


# ── secrets and URLs ────────────────────────────────────────────────────────────────────────────────
_MASK: Final = "**********"


def _is_secret(kind: type) -> bool:
    return any(kind is each for each in _secret_types())


def _secret_types() -> tuple[type, ...]:
    return tuple(
        loaded_class(module, name)
        for module in ("pydantic.types", "pydantic.v1.types")
        for name in ("SecretStr", "SecretBytes")
    )


def _pack_secret(value: Any, _: Encoder) -> dict[str, Any]:
    # The type says that the value must never be written down, so neither recording nor key holds it.
    return {"class": class_path(type(value))}


def _unpack_secret(encoded: dict[str, Any], _: Decoder) -> Any:
    cls = load_class(encoded["class"])
    if not _is_secret(cls):
        raise Refused(f"{encoded['class']}, which is not a pydantic secret")
    return cls(_MASK.encode() if cls.__name__ == "SecretBytes" else _MASK)


def _is_url(kind: type) -> bool:
    return is_below(kind, loaded_class("pydantic.networks", "_BaseUrl"), loaded_class("pydantic_core", "Url"))


def _pack_url(value: Any, enc: Encoder) -> dict[str, Any]:
    return {"class": class_path(type(value)), "value": enc.encode(str(value))}


def _unpack_url(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls = load_class(encoded["class"])
    if not _is_url(cls):
        raise Refused(f"{encoded['class']}, which is not a pydantic URL")
    text = dec.decode(encoded["value"])
    if type(text) is not str:
        raise Refused("something else where a URL belongs")
    plain = library("pydantic_core").Url(text)
    if cls is type(plain):
        return plain
    built: Any = object.__new__(cls)  # its constructor would validate with code of the class
    instance_dict(built)["_url"] = plain
    return built


PYDANTIC: Final = Row("pydantic", _is_model, _pack_model, _unpack_model)
PYDANTIC_V1: Final = Row("pydantic1", _is_model_v1, _pack_model_v1, _unpack_model_v1)
SECRET: Final = Row("secret", _is_secret, _pack_secret, _unpack_secret)
URL: Final = Row("url", _is_url, _pack_url, _unpack_url)
