"""Recorded values that try to run code when decoded; `python -m support.hostile_values` prints what ran.

A valid value of every row of the codec's table is changed at every place: to objects whose special methods report
calls, to classes of all sorts, to modules that aren't loaded, to enormous numbers and depths.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import enum
import gc
import json
import os
import resource
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pydantic
import pytz

from spanreplay.codec import Unserializable, decode, encode
from spanreplay.codec._table import ROWS
from support import tricky_values
from support.opened_files import CHANGES, WRITES

HEARD: list[str] = []
"""The methods of decoded objects that ran, and the audit events that were raised."""
UNLOADED = "deploy_probe"
"""A module on the path that isn't imported; importing it leaves a mark."""
MEMORY_MB_MAX = 100
QUIET_METHODS = (
    *("str", "repr", "hash", "eq", "ne", "lt", "le", "gt", "ge", "len", "iter", "next", "contains", "getitem"),
    *("setitem", "delitem", "missing", "bool", "int", "float", "index", "complex", "bytes", "fspath", "format", "call"),
    *("getattr", "setattr", "delattr", "init", "post_init", "reduce", "setstate", "getstate", "copy", "deepcopy"),
    *("array", "arrow_array", "dataframe", "arrow_c_array", "enter", "add", "radd", "mul", "rmul", "mod", "neg"),
    *("length_hint", "reversed", "round", "trunc", "buffer", "await", "aiter", "set", "get", "init_subclass_"),
)
"""All of these may be defined by a class; decoding calls none of them."""


def _telling(name: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        HEARD.append(f"__{name}__")
        return 0 if name in ("hash", "len", "int", "index") else "" if name in ("str", "repr") else NotImplemented

    return method


def _trap(body: dict[str, Any]) -> None:
    body.update({f"__{name}__": _telling(name) for name in QUIET_METHODS})
    body.update(
        {name: _telling(name) for name in ("utcoffset", "keys", "items", "model_dump", "as_tuple", "isoformat")}
    )
    body["__module__"], body["__qualname__"] = __name__, body["__qualname__"]


def _make(name: str, *bases: type, **extra: Any) -> Any:
    def fill(body: dict[str, Any]) -> None:
        body["__qualname__"] = name
        _trap(body)
        body.update(extra)

    return types.new_class(name, bases, {}, fill)


TrapStr = _make("TrapStr", str)
TrapInt = _make("TrapInt", int)
TrapFloat = _make("TrapFloat", float)
TrapBytes = _make("TrapBytes", bytes)
TrapList = _make("TrapList", list)
TrapTuple = _make("TrapTuple", tuple)
TrapSet = _make("TrapSet", set)
TrapDict = _make("TrapDict", dict)
TrapError = _make("TrapError", Exception)
TrapOSError = _make("TrapOSError", OSError)
TrapData = _make("TrapData", __dataclass_fields__={}, __dataclass_params__=None)
TrapAttrs = _make("TrapAttrs", __attrs_attrs__=())
TrapDel = _make("TrapDel", __dataclass_fields__={}, __del__=_telling("del"))
TrapLook = _make("TrapLook", __dataclass_fields__={}, __getattribute__=_telling("getattribute"))
TrapMask = _make("TrapMask", __dataclass_fields__={}, __class__=property(_telling("class")))


class TellingMeta(type):
    """A metaclass that reports when it is used."""

    __getattr__ = _telling("meta.getattr")
    __hash__ = _telling("meta.hash")
    __eq__ = _telling("meta.eq")
    __call__ = _telling("meta.call")
    __subclasscheck__ = _telling("meta.subclasscheck")
    __instancecheck__ = _telling("meta.instancecheck")


class TrapFlag(enum.Flag):
    """A flag that creates its own values."""

    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        HEARD.append("_missing_")
        return super()._missing_(value)


T = TypeVar("T")


class TrapModel(pydantic.BaseModel, Generic[T]):
    """A generic model that reports when it is created or parametrised."""

    name: Any = None

    def __class_getitem__(cls, item: Any) -> Any:
        HEARD.append("__class_getitem__")
        return super().__class_getitem__(item)

    def model_post_init(self, context: Any) -> None:
        """Report the call."""
        HEARD.append("model_post_init")

    def __hash__(self) -> int:
        HEARD.append("__hash__")
        return 0


@dataclasses.dataclass
class Lifted:
    """A dataclass whose field is a property, as in some code bases."""

    amount: int = 0
    _amount: int = dataclasses.field(default=0, init=False)


Lifted.amount = property(_telling("property.get"), _telling("property.set"))  # type: ignore[assignment]  # the point
OneTellingMeta = TellingMeta(
    "OneTellingMeta", (), {"__module__": __name__, "__dataclass_fields__": {}, "__qualname__": "OneTellingMeta"}
)


class Tally(collections.OrderedDict[str, int]):
    """A dict subclass."""


class Account(pydantic.BaseModel):
    """A model with pydantic's own types."""

    key: pydantic.SecretStr = pydantic.SecretStr("x")
    home: pydantic.HttpUrl = pydantic.HttpUrl("https://example.test/a")
    when: pydantic.AwareDatetime | None = None


def _validation_error() -> Any:
    try:
        tricky_values.Invoice.model_validate({"lines": "x", "due": {}, "color": []})
    except pydantic.ValidationError as exc:
        return exc


def samples() -> list[Any]:
    """Return encoded values that use every row of the table a few times."""
    values = [make() for make in tricky_values.GOOD.values()]
    values += [Account(when="2026-03-01T12:00:00Z"), _validation_error(), Tally(a=1), ValueError("bad", 1)]  # type: ignore[arg-type]  # pydantic reads it
    values += [
        FileNotFoundError(2, "no", "a"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        SyntaxError("bad", ("f", 1, 2, "t")),
    ]
    values += [tricky_values.Invoice(lines=[], due="2026-03-01"), TrapModel[int].model_construct(name=1), Lifted()]  # type: ignore[arg-type]  # as above
    values += [
        tricky_values.Parcel(weight=1.5),
        tricky_values.Bits.A | tricky_values.Bits.B,
        {tricky_values.Sealed("n"): 1},
    ]
    values += [pytz.timezone("Europe/Berlin").localize(dt.datetime(2026, 3, 1)), pytz.FixedOffset(60)]
    values += [collections.deque([1]), slice(1, 2), range(3), ..., memoryview(b"ab"), tricky_values.Order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from support import legacy_models
        except ImportError:
            pass
        else:
            values.append(legacy_models.Old(name="n"))
    chosen: list[Any] = []
    seen: set[str] = set()
    for each in sorted(map(_encoded, values), key=lambda each: len(json.dumps(each))):
        shapes = {
            f"{node['$type']} {sorted(node)}" for _, node in walk(each) if isinstance(node, dict) and "$type" in node
        }
        if not shapes <= seen:
            seen |= shapes
            chosen.append(each)
    return chosen


def _encoded(value: Any) -> Any:
    try:
        return json.loads(json.dumps(encode(value)))
    except Unserializable:
        return None


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every place in a JSON value."""
    yield path, node
    members = node.items() if isinstance(node, dict) else enumerate(node[:2]) if isinstance(node, list) else ()
    for step, member in members:
        yield from walk(member, (*path, step))


def changed(root: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with one place changed."""
    if not path:
        return value
    copied = copy.copy(root)
    copied[path[0]] = changed(root[path[0]], path[1:], value)
    return copied


def _of(tag: str, name: str, **members: Any) -> dict[str, Any]:
    return {"$type": tag, "class": f"{__name__}:{name}", **members}


def _subclass(name: str, base: str, value: Any) -> dict[str, Any]:
    return _of("subclass", name, base=base, value=value)


_BYTES = _subclass("TrapBytes", "bytes", {"$type": "bytes", "text": "a"})
OBJECTS: list[Any] = [
    _subclass("TrapStr", "str", "a"),
    _subclass("TrapInt", "int", 1),
    _subclass("TrapFloat", "float", 1.0),
    _BYTES,
    _subclass("TrapList", "list", [1]),
    _subclass("TrapTuple", "tuple", [1]),
    _subclass("TrapSet", "set", {"$type": "set", "items": [1]}),
    _subclass("TrapDict", "dict", {"a": 1}),
    _of("exception", "TrapError", args=["x"]),
    _of("exception", "TrapError", args=[_subclass("TrapStr", "str", "a"), 2], state={"convert": 1}),
    _of("exception", "TrapOSError", args=[_subclass("TrapInt", "int", 2), "x", _subclass("TrapStr", "str", "a")]),
    _of("dataclass", "TrapData", fields={}),
    _of("attrs", "TrapAttrs", fields={}),
    _of("dataclass", "TrapDel", fields={}),
    _of("dataclass", "TrapLook", fields={}),
    _of("dataclass", "TrapMask", fields={}),
    _of("dataclass", "OneTellingMeta", fields={}),
    _of("dataclass", "Lifted", fields={"amount": 1, "_amount": 2}),
    _of("enum", "TrapFlag", value=1),
    _of("enum", "TrapFlag", value=3),
    _of("pydantic", "TrapModel", fields={"name": 1}, set=["name"]),
    _of("pydantic", "TrapModel", args=["builtins:bytes"], fields={}, set=[]),
    _of("class", "TrapModel"),
    {"$type": "tuple", "items": [_of("dataclass", "TrapData", fields={})]},
    {"$type": "set", "items": [_of("dataclass", "TrapData", fields={})]},
    {"$type": "dict", "items": [[_of("dataclass", "TrapData", fields={}), 1]]},
    {"$type": "exception", "class": "builtins:SyntaxError", "args": ["x", _subclass("TrapList", "list", [1])]},
    {"$type": "exception", "class": "builtins:UnicodeDecodeError", "args": ["x", _BYTES, 0, 1, "x"]},
]  # fmt: skip
CLASSES: list[Any] = [
    *(
        "builtins:eval",
        "builtins:object",
        "builtins:type",
        "os:system",
        "subprocess:Popen",
        "ctypes:CDLL",
        "types:CodeType",
    ),
    *("pydantic.type_adapter:TypeAdapter", "logging.config:ConvertingDict", "functools:partial", "threading:Thread"),
    *(
        f"{__name__}:{each['class'].partition(':')[2]}"
        for each in OBJECTS
        if "class" in each and __name__ in each["class"]
    ),
]
IMPORTS: list[Any] = [
    *(f"{UNLOADED}:Deployer", f"{UNLOADED}:run", UNLOADED, f"{UNLOADED}.inner:Deployer", "antigravity:fly", "this:s"),
    *({"$type": tag, "class": f"{UNLOADED}:Deployer", "fields": {}} for tag in ("dataclass", "class", "exception")),
]
HUGE: list[Any] = [
    *(10**4000, -(10**4000), 2**63, -1, 10**9, 1e308, float("inf"), "9" * 5_000, "1e999999999", "A" * 100_000),
    *("0x" + "f" * 100_000, "<U99999999", "<f99999999", "../../etc/passwd", "i4,O", "9" * 40 + "D", [0] * 10_000),
    {"$type": "decimal", "value": "1e999999"},
    {"$type": "int", "hex": "0x" + "f" * 300_000},
]


def _nested(wrap: Callable[[Any], Any]) -> Any:
    value: Any = {"$type": "tuple", "items": []}
    for _ in range(400):
        value = wrap(value)
    return value


DEEP: list[Any] = [
    _nested(lambda inner: [inner]),
    _nested(lambda inner: {"a": inner}),
    _nested(lambda inner: {"$type": "tuple", "items": [inner]}),
    _nested(lambda inner: {"$type": "frozenset", "items": [inner]}),
    _nested(lambda inner: {"$type": "exception", "class": "builtins:ValueError", "args": [], "cause": inner}),
]
FAMILIES = {"object": OBJECTS, "class": CLASSES, "import": IMPORTS, "huge": HUGE, "deep": DEEP}
MEMBERS = {
    "dataclass": ("extra", "fields"),
    "attrs": ("extra", "fields"),
    "subclass": ("extra",),
    "exception": ("state",),
}
MEMBERS |= {"pydantic": ("fields", "private"), "pydantic1": ("fields", "private")}
_EVENTS = ("import", "exec", "compile", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen")


def _attempt(encoded: Any) -> Any:
    try:
        return decode(encoded)
    except Unserializable:
        return None


def _attack(encoded: list[Any], replacements: list[Any]) -> list[str]:
    said: set[str] = set()
    for root in encoded:
        for path, _ in walk(root):
            for replacement in replacements:
                HEARD.clear()
                _attempt(changed(root, path, replacement))
                if HEARD:
                    tag = root.get("$type") if isinstance(root, dict) else "-"
                    said.add(f"{tag} at {path}: {json.dumps(replacement)[:90]} ran {sorted(set(HEARD))}")
    return sorted(said)


def _hide(encoded: list[Any]) -> list[str]:
    """Return the instance attributes that would hide a method of their class."""
    said: set[str] = set()
    for root in encoded:
        for path, node in walk(root):
            tag = node.get("$type") if isinstance(node, dict) else None
            for member in MEMBERS.get(str(tag), ()):
                module, _, name = node["class"].partition(":")
                cls = sys.modules[module]
                for step in name.split("."):
                    cls = getattr(cls, step)
                for method in [each for each in dir(cls) if callable(getattr(cls, each, None))]:
                    HEARD.clear()
                    held = {**(node.get(member) or {}), method: 7}
                    try:
                        decode(changed(root, path, {**node, member: held}))
                    except Unserializable:
                        continue
                    said.add(f"{tag} {node['class']}: {member} hid {method}")
    return sorted(said)


def main() -> None:
    """Print what ran, by kind of attack."""
    encoded = samples()
    tags = {node["$type"] for each in encoded for _, node in walk(each) if isinstance(node, dict) and "$type" in node}
    for each in encoded:
        assert encode(decode(each)) == each, each  # also loads what libraries load lazily
    rows = sorted(row.tag for row in ROWS)
    mark = os.environ["PROBE_MARK"]
    for attack in (_attempt, _attempt):  # twice: the first loads what a refusal needs
        for replacement in (*OBJECTS, *IMPORTS, {"$type": "zoneinfo", "key": "No/Such"}):  # the last one loads tzdata
            attack(replacement)
    is_on = True

    def hear(event: str, args: Any) -> None:
        is_write = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        if is_on and (event in _EVENTS or event in CHANGES or is_write):
            HEARD.append(f"{event} {args[:1]!r}"[:80])

    sys.addaudithook(hear)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result: dict[str, Any] = {name: _attack(encoded, family) for name, family in FAMILIES.items()}
    result["hide"] = _hide(encoded)
    gc.collect()
    is_on = False
    result["memory_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    result["missing"] = sorted(set(rows) - tags)
    result["imported"] = UNLOADED in sys.modules or os.path.exists(mark)  # noqa: PTH110 -- text
    print(json.dumps(result))


if __name__ == "__main__":
    import support.hostile_values

    support.hostile_values.main()
