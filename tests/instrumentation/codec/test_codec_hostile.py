"""A recording of unknown origin cannot make the codec run anything."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.codec import Unserializable, decode
from spanreplay.codec._lookup import load_class
from spanreplay.codec._table import ROWS

TARGETS = [
    "os:system",
    "posix:system",
    "subprocess:Popen",
    "subprocess:call",
    "builtins:eval",
    "builtins:exec",
    "builtins:open",
    "builtins:__import__",
    "importlib:import_module",
    "functools:partial",
    "socket:socket",
    "tempfile:_TemporaryFileCloser",
    "shutil:rmtree",
    "threading:Thread",
    "ctypes:CDLL",
    "pathlib:Path",
    "types:FunctionType",
    "code:InteractiveInterpreter",
    "logging:FileHandler",
    "spanreplay.codec._lookup:load_class",
]
TAGS_WITH_CLASS = ["dataclass", "attrs", "enum", "namedtuple", "pydantic", "pydantic1", "secret", "url", "class",
                   "subclass", "exception", "offset_zone", "zoneinfo_subclass"]  # fmt: skip
FILLING: dict[str, Any] = {
    "fields": {"args": ["touch /tmp/owned"]},
    "args": [],
    "value": "touch /tmp/owned",
    "name": "x",
    "base": "str",
    "set": [],
    "private": {},
    "seconds": 0,
    "extra": {},
}


@pytest.mark.parametrize("tag", TAGS_WITH_CLASS)
@pytest.mark.parametrize("target", TARGETS)
def test_codec_builds_no_class_outside_its_families(tag: str, target: str) -> None:
    """No tag builds, calls or returns a class that is not of the tag's family."""
    with pytest.raises(Unserializable):
        decode({"$type": tag, "class": target, **FILLING})


def test_codec_hostile_tags_are_all_that_take_a_class() -> None:
    """Every row that looks up a class is among those attacked."""
    takes_class = {
        row.tag for row in ROWS if "load_class" in _names_of(row.unpack) or "_checked" in _names_of(row.unpack)
    }
    assert takes_class <= set(TAGS_WITH_CLASS)


def _names_of(function: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = function.__code__.co_names
    return names


def _write(directory: Path, name: str, source: str) -> None:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(source)


def _load_in_process(directory: Path, path: str, first: str = "") -> str:
    code = (
        f"import sys; {first} from spanreplay.codec._lookup import load_class, Refused\n"
        f"try: print('got', load_class({path!r}).__name__)\n"
        "except Refused as exc: print('refused', exc.what)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, check=True, text=True, timeout=600
    )
    return done.stdout


@pytest.mark.parametrize(
    "path",
    [
        "deploy:Deploy",
        "deploy:system",
        "tools.__main__:Tool",
        "antigravity:webbrowser",
        "this:s",
        "missing:X",
        "broken:X",
    ],
)
def test_codec_imports_no_module_that_does_not_define_the_class(tmp_path: Path, path: str) -> None:
    """A script beside the agent does not run because a recording names it."""
    _write(tmp_path, "deploy.py", "print('DEPLOYED')\nfrom os import system\n")
    _write(tmp_path, "tools/__init__.py", "")
    _write(tmp_path, "tools/__main__.py", "print('DEPLOYED')\nclass Tool: pass\n")
    _write(tmp_path, "broken.py", "print('DEPLOYED')\nclass X(\n")
    out = _load_in_process(tmp_path, path)
    assert out.startswith("refused")
    assert "DEPLOYED" not in out


@pytest.mark.parametrize("path", ["models:Answer", "shop:Cart", "shop.cart:Cart"])
def test_r8_codec_imports_nothing_for_a_recording(tmp_path: Path, path: str) -> None:
    """Not even the module that defines the class is imported: its top level is code that nobody asked for."""
    _write(tmp_path, "models.py", "print('DEPLOYED')\nclass Answer: pass\n")
    _write(tmp_path, "shop/__init__.py", "print('DEPLOYED')\nfrom shop.cart import Cart\n")
    _write(tmp_path, "shop/cart.py", "class Cart: pass\n")
    out = _load_in_process(tmp_path, path)
    assert out.startswith(f"refused {path}: nothing here has imported {path.partition(':')[0]}")
    assert "DEPLOYED" not in out


def test_codec_asks_no_lazy_module(tmp_path: Path) -> None:
    """A module's __getattr__ is never called with a recording's name."""
    _write(tmp_path, "lazy.py", "def __getattr__(name):\n    print('ASKED')\n    return int\nclass X: pass\n")
    assert _load_in_process(tmp_path, "lazy:X.y").startswith("refused")
    assert "ASKED" not in _load_in_process(tmp_path, "lazy:Y")
    assert "ASKED" not in _load_in_process(tmp_path, "lazy:Y", first="import lazy;")


@pytest.mark.parametrize(
    "path", [None, 7, "", "x", ":", "os:", ":x", "a b:c", "os:environ.copy", "..os:x", "x" * 600 + ":y"]
)
def test_codec_refuses_what_is_no_class_path(path: Any) -> None:
    """A malformed class path is refused."""
    with pytest.raises(Unserializable):
        decode({"$type": "class", "class": path})


@pytest.mark.parametrize("name", ["__class__", "args", "with_traceback", "__str__"])
def test_codec_state_cannot_change_a_class(name: str) -> None:
    """Attributes named like Python's own machinery, or like a method, are refused."""
    hostile = {"$type": "exception", "class": "builtins:ValueError", "args": [], "state": {name: 5}}
    with pytest.raises(Unserializable, match="must not hide"):
        decode(hostile)


# ── every row under an audit hook ──────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ran while every row's value was changed at every place, in a process with an audit hook."""
    directory = tmp_path_factory.mktemp("attacked")
    _write(directory, "deploy_probe.py", "import os; open(os.environ['PROBE_MARK'], 'w')\nclass Deployer: pass\n")
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{directory}", "PROBE_MARK": str(directory / "mark")}
    command = [sys.executable, "-W", "ignore", "-m", "support.hostile_values"]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("attack", ["object", "class", "import", "huge", "deep"])
def test_r8_no_row_runs_code(attacked: dict[str, Any], attack: str) -> None:
    """No special method of a decoded object is called, nothing is imported, compiled or executed."""
    assert attacked[attack] == []


def test_r8_no_attribute_hides_a_method(attacked: dict[str, Any]) -> None:
    """No attribute in an instance's state shadows a name of its class."""
    assert attacked["hide"] == []


def test_r8_hostile_values_take_bounded_memory(attacked: dict[str, Any]) -> None:
    """Thousands of values with huge numbers and depths are decoded or refused within 100 MB."""
    assert attacked["memory_mb"] < 100


def test_r8_every_row_was_attacked(attacked: dict[str, Any]) -> None:
    """These attacks cover every row of the table, and the module that they name was not imported."""
    assert attacked["missing"] == []
    assert not attacked["imported"]


def test_r8_an_exception_cannot_carry_a_program() -> None:
    """A lookup of a formatted exception ends at data: no class that evaluates text is returned."""
    holder = {"$type": "exception", "class": "builtins:ValueError", "args": [], "state": {"convert": None}}
    for path in ("pydantic.type_adapter:TypeAdapter", "builtins:type", "functools:partial", "builtins:str"):
        holder["state"] = {"convert": {"$type": "class", "class": path}}
        with pytest.raises(Unserializable):
            decode(holder)


@pytest.mark.parametrize(
    "encoded",
    [
        {"$type": "ndarray", "dtype": "O", "shape": [1], "b64": "AAAAAAAAAAA="},
        {"$type": "ndarray", "dtype": "<f8", "shape": [10**9], "b64": ""},
        {"$type": "ndarray", "dtype": "no such", "shape": [], "b64": ""},
        {"$type": "npscalar", "dtype": "|O", "b64": "AAAAAAAAAAA="},
        {"$type": "ndarray", "dtype": "<U4", "shape": [1], "items": [7]},
        {"$type": "ndarray", "dtype": "<f8", "shape": [1], "items": [7]},
        {"$type": "ndarray", "dtype": "i1", "shape": [1, 2], "axes": [0, 0], "b64": "AAA="},
        {"$type": "npscalar", "dtype": "U", "item": 7},
        {"$type": "npdtype", "dtype": "i4,O"},
        {
            "$type": "dataframe",
            "index": {"$type": "pdindex", "range": [0, 9, 1], "name": None},
            "columns": {},
            "dtypes": ["i1"],
            "values": [{"a": {"b64": "AA=="}}],
        },
        {"$type": "dataframe", "index": [0], "columns": [], "dtypes": [], "values": []},
        {
            "$type": "dataframe",
            "index": {"$type": "pdindex", "range": [0, 1, 1], "name": None},
            "columns": {"$type": "pdindex", "range": [0, 1, 1], "name": None},
            "dtypes": ["i1"],
            "values": [{"a": {"b64": "AA=="}}],
            "by_row": [7],
        },
        {
            "$type": "series",
            "index": {"$type": "pdindex", "range": [0, 1, 1], "name": None},
            "name": None,
            "dtype": "i4,O",
            "values": {"": []},
        },
        {
            "$type": "series",
            "index": {"$type": "pdindex", "range": [0, 1, 1], "name": None},
            "name": [],
            "dtype": "i1",
            "values": {"": {"b64": "AA=="}},
        },
        {"$type": "pdindex", "range": [0, 9, 0], "name": None},
        {"$type": "pdindex", "levels": [1], "codes": [], "names": [], "sortorder": None},
        {
            "$type": "pdindex",
            "dtype": "<M8[ns]",
            "values": {"": {"b64": "AAAAAAAAAAA="}},
            "name": None,
            "freq": "__import__('os')",
        },
        {"$type": "pdarray", "dtype": {"family": "eval"}, "values": []},
        {
            "$type": "pdarray",
            "dtype": {"family": "category"},
            "values": {
                "b64": "BQ==",
                "codes": "i1",
                "ordered": False,
                "categories": {"$type": "pdindex", "range": [0, 1, 1], "name": None},
            },
        },
        {"$type": "pddtype", "dtype": {"family": "nullable", "name": "object"}},
        {"$type": "pddtype", "dtype": {"family": "arrow", "name": "eval[pyarrow]"}},
        {"$type": "pddtype", "dtype": {"family": "datetimetz", "unit": "ns", "tz": "UTC; x"}},
        {"$type": "timestamp", "value": "now or never", "unit": "ns"},
        {"$type": "pdtimedelta", "value": "x", "unit": "ns"},
        {"$type": "period", "ordinal": 1, "freq": "os.system"},
        {"$type": "interval", "left": 2, "right": 1, "closed": "left"},
        {"$type": "pytz", "zone": "../../etc/passwd"},
        {"$type": "datetime", "value": 3},
        {"$type": "datetime", "value": "2026-01-01", "tz": "UTC"},
        {"$type": "zoneinfo", "key": "../../etc/passwd"},
        {"$type": "pattern", "pattern": "(", "flags": 0},
        {"$type": "dict", "items": [[1]]},
        {"$type": "dict", "items": [[[], 1]]},
        {"$type": "set", "items": [[]]},
        {"$type": "defaultdict", "factory": "eval", "items": []},
        {"$type": "int", "hex": "zz"},
        {"$type": "path", "class": "Path"},
        {"$type": "exception", "class": "builtins:BaseExceptionGroup", "args": []},
        {"$type": "nothing"},
        {"$type": ["tuple"]},
        {"$type": None},
        {"a": {1, 2}},
        object(),
    ],
    ids=lambda encoded: json.dumps(encoded, default=lambda value: type(value).__name__)[:40],
)
def test_codec_refuses_malformed_input(encoded: Any) -> None:
    """Malformed objects raise Unserializable and no other error."""
    with pytest.raises(Unserializable):
        decode(encoded)


tagged = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(TARGETS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(
            lambda tag, members: {"$type": tag, **members},
            st.sampled_from([row.tag for row in ROWS]),
            st.dictionaries(
                st.sampled_from(
                    [
                        *("class", "items", "value", "fields", "args", "b64", "of", "base", "shape", "dtype", "text"),
                        *("index", "columns", "dtypes", "values", "name", "range", "freq", "unit", "family", "zone"),
                    ]
                ),
                inner,
                max_size=4,
            ),
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(tagged)
def test_codec_decodes_anything_or_refuses(encoded: Any) -> None:
    """For any content of a recording, decoding gives a value or one kind of error."""
    with contextlib.suppress(Unserializable):
        decode(encoded)


def test_codec_class_lookup_is_by_namespace() -> None:
    """A class is looked up under its name in its module's namespace."""
    assert load_class("collections:OrderedDict").__name__ == "OrderedDict"
