"""Seam: library functions that open files in native code, invisible to Python: indexes, tables, databases.

When such a function reads a file, the read is a call with the file's content, as with `open` (`files.py`); files that
it writes are noted. In a replay it gets the path of the overlay's file instead of the real one. NATIVE has one row per
function.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.model.code_state import KEEPS
from spanreplay.runtime.agent_patches import Patch, asks, install_patch
from spanreplay.runtime.caller.places import DEVICES, asks_for, places
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.effects import note_effect
from spanreplay.seams.machine.files.appended import fill_appended
from spanreplay.seams.machine.files.changes import look_before, name_of, note_write, run_of_files
from spanreplay.seams.machine.outside.leaks import note

_getframe: Final = sys._getframe
_open: Final = open
READ, WRITE, KEEP = "read", "write", "keep"
"""A file that is read; a file that is written; a file or folder that a library keeps, which it reads and changes."""
FILES_MAX: Final = 1000
"""Files in a folder that a library keeps."""
_IN_MEMORY: Final = ("", ":memory:", ":default:", "memory://")

Mode = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Native:
    """One function, or the `__init__` of a class, and the position of its path argument."""

    module: str
    name: str
    mode: str
    path: str
    """The name of the argument that holds the path."""
    at: int = 0
    """Its position; a method's is counted after `self`."""
    owner: str = ""
    """A class in the module."""
    choose: Mode | None = None
    """Returns a call's mode from its arguments by name: '' for a call that opens nothing."""
    suffixes: Callable[[Any], tuple[str, ...]] = lambda _: ("",)  # a field
    """Returns what the module adds to a path for each file that it opens."""


def _h5_mode(given: dict[str, Any]) -> str:
    mode = given.get("mode", "r")
    return READ if mode == "r" else WRITE if mode in ("w", "w-", "x") else KEEP


def _dbm_mode(given: dict[str, Any]) -> str:
    return READ if given.get("mode", "r").startswith("r") else KEEP  # a new one too: it holds an id of its own


def _duck_mode(given: dict[str, Any]) -> str:
    return READ if given.get("read_only") else KEEP


def _ndbm_suffixes(module: Any) -> tuple[str, ...]:
    return (".db",) if module.library == "Berkeley DB" else (".dir", ".pag")


def _rows(module: str, mode: str, path: str, *names: str, at: int = 0, owner: str = "") -> tuple[Native, ...]:
    return tuple(Native(module, name, mode, path, at, owner) for name in names)


NATIVE: Final = (
    *_rows("faiss", READ, "fname", "read_index", "read_index_binary", "read_VectorTransform", "read_ProductQuantizer"),
    *_rows("faiss", WRITE, "fname", "write_index", "write_index_binary", "write_VectorTransform", at=1),
    Native("duckdb", "connect", KEEP, "database", choose=_duck_mode),
    Native("dbm.ndbm", "open", KEEP, "filename", choose=_dbm_mode, suffixes=_ndbm_suffixes),
    Native("dbm.gnu", "open", KEEP, "filename", choose=_dbm_mode),
    Native("lancedb", "connect", KEEP, "uri"),
    Native("h5py", "__init__", READ, "name", owner="File", choose=_h5_mode),
    Native("cv2", "imread", READ, "filename"),
    Native("cv2", "imwrite", WRITE, "filename"),
    *_rows("lxml.etree", READ, "source", "parse", "iterparse"),
    *_rows("lxml.etree", WRITE, "output_file", "xmlfile", "htmlfile"),
    *_rows("pymupdf", READ, "filename", "__init__", owner="Document"),
    *_rows("pymupdf", WRITE, "filename", "save", "ez_save", owner="Document"),
    *_rows("safetensors.numpy", READ, "filename", "load_file"),
    *_rows("safetensors.numpy", WRITE, "filename", "save_file", at=1),
    *_rows("safetensors.torch", READ, "filename", "load_file"),
    *_rows("safetensors.torch", WRITE, "filename", "save_file", at=1),
    *_rows("polars", READ, "source", *(f"{verb}_{form}" for verb in ("read", "scan")
                                       for form in ("csv", "parquet", "ipc", "ndjson")), "read_json"),
    *_rows("polars", WRITE, "file", "write_csv", "write_parquet", "write_ipc", "write_json", "write_ndjson",
           owner="DataFrame"),
    *_rows("pyarrow.parquet", READ, "source", "read_table", "read_pandas"),
    *_rows("pyarrow.parquet", READ, "where", "read_schema", "read_metadata"),
    *_rows("pyarrow.parquet", READ, "source", "__init__", owner="ParquetFile"),
    *_rows("pyarrow.parquet", WRITE, "where", "write_table", at=1),
    *_rows("pyarrow.parquet", WRITE, "where", "__init__", owner="ParquetWriter"),
    *_rows("pyarrow.csv", READ, "input_file", "read_csv", "open_csv"),
    *_rows("pyarrow.csv", WRITE, "output_file", "write_csv", at=1),
    *_rows("pyarrow.feather", READ, "source", "read_table", "read_feather"),
    *_rows("pyarrow.feather", WRITE, "dest", "write_feather", at=1),
)  # fmt: skip
MODULES: Final = tuple(dict.fromkeys(row.module for row in NATIVE))


def _read_all(path: str) -> dict[str, Any]:
    """Return a file's content or, by name, the contents of a folder's files; limited by FILE_BYTES_MAX."""
    with unwatched():
        if not os.path.isdir(path):  # noqa: PTH112 -- text
            names = [""] if os.path.isfile(path) else []  # noqa: PTH113 -- text
        else:
            names = sorted(
                os.path.relpath(os.path.join(folder, name), path)  # noqa: PTH118 -- text
                for folder, _, inside in os.walk(path)
                for name in inside
            )
        found: dict[str, bytes] = {}
        left = config.FILE_BYTES_MAX
        for name in names[: FILES_MAX + 1]:
            with _open(os.path.join(path, name) if name else path, "rb") as source:  # noqa: PTH118 -- text
                found[name] = source.read(left + 1)
            left -= len(found[name])
            if left < 0:
                break
    if left < 0 or len(names) > FILES_MAX:
        return {"is_too_large": True}
    digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in found.values())).hexdigest()
    return {"sha256": digest, "content": found, "is_folder": os.path.isdir(path)}  # noqa: PTH112 -- text


def _take_in(run: Run, path: str, mode: str) -> None:
    """Record what is at a path as an input: a call with its content, restored in a replay. Raises: ReplayMiss."""
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        value = _read_all(path)
        if "content" not in value:
            run.hole(f"the content of {path!r} is larger than {config.FILE_BYTES_MAX} bytes, or {FILES_MAX} files")
        return value

    arguments = {"path": name_of(run, path), "mode": f"native {mode}"}
    value = call_sync(lambda: FunctionCall(Kind.TOOL.value, "open", Effect.READ.value, arguments), live)
    if is_live or run.overlay is None:
        return
    if "content" not in value:
        run.resolver.leave_out(f"the content of {path!r} was not recorded: it was too large")
    run.overlay.have(path, "")
    if value["is_folder"]:
        run.overlay.have(path, "directory")
    for name, content in value["content"].items():
        run.overlay.put(os.path.join(path, name) if name else path, content)  # noqa: PTH118 -- text


def _place_of(frame: FrameType, row: Native, mode: str, path: str) -> str:
    """Note the agent's input or output, and return the path where the native code finds or makes this file."""
    run = run_of_files()
    if run is not None and run.written is not None and asks_for(frame, path):
        if mode == KEEP:
            run.written.hand_over(path)
        own = run.written.has(path) or run.written.touched.has(path)
        if own and mode == READ:
            fill_appended(run, _open, path)
        if mode == WRITE:
            note_write(run, _open, path, "wb")
        elif not own and any(each in path for each in "*?["):
            note("file", f"{row.module}.{row.name}", path)
        elif not own and places().is_outside(path):
            if mode == READ or look_before(run, path):
                _take_in(run, path, mode)
            if mode == KEEP:
                run.written.touched.add(path)
        elif not own and mode == KEEP:
            look_before(run, path, KEEPS)
            run.written.touched.add(path)
    run = active_run()
    if run is None or run.overlay is None:
        return path
    return run.overlay.find(path) if mode == READ else run.overlay.take(path)


def shown_name(path: str) -> str:
    """Return a path as calls name it, whether or not its files are noted here."""
    run = active_run()
    return path if run is None else name_of(run, path)


def _call(frame: FrameType, row: Native, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    at = row.at + (1 if row.owner else 0)
    given = args[at] if len(args) > at else kwargs.get(row.path)
    mode = row.mode
    if row.choose is not None:
        following = args[at + 1] if len(args) > at + 1 else None
        mode = row.choose({"mode": following or "r", "read_only": following, **kwargs})
    if active_run() is None or not isinstance(given, (str, os.PathLike)):
        return real(*args, **kwargs)
    path = os.fsdecode(given)
    if path in _IN_MEMORY or "://" in path or path.startswith(DEVICES):
        return real(*args, **kwargs)
    if mode == KEEP and asks(frame):
        note_effect(f"{row.module}.{row.owner or row.name}", {row.path: shown_name(path)}, is_contained=True)
    first, *further = row.suffixes(sys.modules[row.module])
    place = _place_of(frame, row, mode, path + first).removesuffix(first)
    for suffix in further:
        _place_of(frame, row, mode, path + suffix)
    if place == path:
        return real(*args, **kwargs)
    if len(args) > at:
        return real(*args[:at], place, *args[at + 1 :], **kwargs)
    return real(*args, **{**kwargs, row.path: place})


def _replace(patches: Patches, owner: Any, row: Native) -> None:
    real = getattr(owner, row.name)
    if isinstance(owner, type):

        def method(*args: Any, **kwargs: Any) -> Any:
            return _call(_getframe(1), row, real, args, kwargs)

        method.__name__, method.__qualname__, method.__doc__ = row.name, f"{row.owner}.{row.name}", real.__doc__
        patches.replace(owner, row.name, method)
        return

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        return _call(_getframe(1), row, real, args, kwargs)

    install_patch(patches, owner, row.name, call, Patch(row.module, row.name, real))


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of one module that open files in native code."""
    for row in NATIVE:
        owner = getattr(module, row.owner, None) if row.owner else module
        if row.module == module.__name__ and hasattr(owner, row.name):
            _replace(patches, owner, row)
