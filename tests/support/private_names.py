"""Tests recording on a Python that lacks one private name; each name is tried in its own process.

Run: python private_names.py FOLDER. The names are those that spanreplay's sources look up on modules of the standard
library and of OpenTelemetry; each is deleted before spanreplay is imported. A name without which the bare program or
OpenTelemetry fails is hidden instead: only spanreplay's own code doesn't find it.
"""

from __future__ import annotations

import ast
import asyncio
import asyncio.selector_events
import concurrent.futures
import importlib
import inspect
import json
import logging
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider

SOURCES: Final = Path(__file__).resolve().parents[2] / "instrumentation" / "spanreplay"
ALWAYS_THERE: Final = {*sys.stdlib_module_names, "opentelemetry"}
"""Packages that every recorded process has."""
DOCUMENTED: Final = ("os._exit", "sys._getframe")
"""Names with an underscore that are documented by Python."""
LEFT_OUT: Final = ("replayer", "cli", "report", "testing")
"""Folders that are not loaded while recording."""
KINDS: Final[tuple[type, ...]] = (
    asyncio.base_events.BaseEventLoop,
    asyncio.selector_events.BaseSelectorEventLoop,
    asyncio.Handle,
    concurrent.futures.Future,
    concurrent.futures.ThreadPoolExecutor,
    threading.Thread,
    threading.Condition,
    subprocess.Popen,
    queue.Queue,
    TracerProvider,
    SynchronousMultiSpanProcessor,
)
"""Classes of Python and of OpenTelemetry whose instances every recorded process has."""


# ── The names ───────────────────────────────────────────────────────────────────────────────────────
def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _bound_modules(tree: ast.AST) -> dict[str, str]:
    """Return local name → module of the standard library or of OpenTelemetry, or an attribute of one."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.partition(".")[0]
                found[each.asname or root] = each.name if each.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return {name: path for name, path in found.items() if path.partition(".")[0] in ALWAYS_THERE}


def _dotted(node: ast.AST, bound: dict[str, str]) -> str:
    """Return the full name of `module.attribute`, or ''."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, bound)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def find_names() -> list[str]:
    """Return full names, such as `concurrent.futures._base._yield_finished_futures`."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.relative_to(SOURCES).parts[0] in LEFT_OUT:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bound = _bound_modules(tree)
        found.update(name for name in bound.values() if _is_private(name.rpartition(".")[2]))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                found.add(_dotted(node, bound))
            elif isinstance(node, ast.Call) and len(node.args) > 1:
                second = node.args[1]
                is_name = isinstance(second, ast.Constant) and isinstance(second.value, str)
                owner = _dotted(node.args[0], bound)
                if is_name and owner and _is_private(second.value):  # type: ignore[attr-defined]  # as asked
                    found.add(f"{owner}.{second.value}")  # type: ignore[attr-defined]  # as above
    return sorted(name for name in found - {*DOCUMENTED} if "." in name and _find_owner(name) is not None)


def find_attributes() -> list[tuple[type, str]]:
    """Return class, private attribute of its instances, for all that our sources use and that every process has."""
    used: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.relative_to(SOURCES).parts[0] not in LEFT_OUT:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            used.update(node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_private(node.attr))
    found: list[tuple[type, str]] = []
    for kind in KINDS:
        source = inspect.getsource(kind)
        made = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and _is_own(node)}
        found += [(kind, name) for name in sorted(used & {*made, *vars(kind)})]
    return found


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self" and isinstance(node.ctx, ast.Store)


def _find_owner(name: str) -> tuple[Any, str] | None:
    """Return the object that has the last part of a name, and that part; None if there is none or it is a module."""
    owner_name, _, last = name.rpartition(".")
    parts = owner_name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            owner = getattr(owner, part, None)
        is_module = isinstance(vars(owner).get(last), type(sys)) if hasattr(owner, "__dict__") else True
        return None if is_module or last not in vars(owner) else (owner, last)
    return None


def _named(owner: Any, attribute: str) -> str:
    module = owner.__module__ + "." if isinstance(owner, type) else ""
    return f"{module}{getattr(owner, '__qualname__', getattr(owner, '__name__', '?'))}.{attribute}"


def _spy(see: Callable[[str, str], None]) -> None:
    """Call `see(our module, name)` for every patch; it may raise. For use in a child process."""
    from spanreplay.runtime.patches import Patches

    def wrapper(real: Any) -> Any:
        def note(patches: Any, owner: Any, attribute: str, value: Any) -> Any:
            if isinstance(owner, (type, type(sys))):
                see(sys._getframe(1).f_globals["__name__"], _named(owner, attribute))
            return real(patches, owner, attribute, value)

        return note

    Patches.wrap, Patches.replace = wrapper(Patches.wrap), wrapper(Patches.replace)  # type: ignore[method-assign]  # as said


def find_patched(folder: Path, url: str) -> dict[str, list[str]]:
    """Return our module → the names that it patches while recording."""
    patched: dict[str, list[str]] = {}

    def watch() -> dict[str, Any]:
        _spy(lambda module, name: patched.setdefault(module, []).append(name))
        _record(url, folder)
        return {"patched": patched}

    found: dict[str, list[str]] = in_child(folder, watch)["patched"]
    return found


# ── The program ─────────────────────────────────────────────────────────────────────────────────────
class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        return

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


def work(url: str, folder: Path, tool: Any) -> list[str]:
    """Run a program that uses a bit of everything."""

    async def step(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        return int(tool(number))

    async def main() -> list[int]:
        first = await asyncio.gather(*(asyncio.create_task(step(number)) for number in range(3)))
        done, _ = await asyncio.wait([asyncio.create_task(step(9))], timeout=5)
        return [*first, *(task.result() for task in done)]

    said = [str(asyncio.run(main()))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        said.append(str(sorted(pool.map(tool, range(3)))))
    thread = threading.Thread(target=tool, args=(5,))
    thread.start()
    thread.join()
    said.append(urllib.request.urlopen(url).read().decode())
    said.append(subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True).stdout)
    with sqlite3.connect(folder / "a.db") as database:
        said.append(str(database.execute("select 1").fetchall()))
    (folder / "a.txt").write_text("text")
    said.append((folder / "a.txt").read_text())
    said.append(str(time.time() > 0 and uuid.uuid4().version))
    return said


def _plain(number: int) -> int:
    return number + 1


def _record(url: str, folder: Path) -> dict[str, Any]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # shorter than a class
    logging.getLogger("spanreplay").addHandler(handler)
    os.environ.update({"SPANREPLAY_DIR": str(folder / ".spanreplay"), "SPANREPLAY_DOCTOR": str(folder / "doctor.json")})
    from spanreplay.activate import auto

    auto.pre_instrument()
    auto.post_instrument()
    import spanreplay

    said = work(url, folder, spanreplay.boundary("tool", name="tool", effect="read")(_plain))
    auto._finish()
    from spanreplay.recording.catalog import RunQuery
    from spanreplay.recording.spool import SpoolCatalog

    catalog = SpoolCatalog(folder / ".spanreplay")
    (summary,) = catalog.search(RunQuery())
    recording = catalog.load(summary.root.run_id)
    doctor = json.loads((folder / "doctor.json").read_text())
    return {
        "said": said,
        "boundaries": sorted(f"{call.kind}:{call.name}" for call in recording.calls),
        "reasons": list(recording.completeness().reasons),
        "lines": lines,
        "failed": [row for row in doctor["seams"] if row["state"] == "failed"],
        "failures": sorted(doctor["failures"]),
    }


def in_child(folder: Path, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a child process and return its result; `error` if it fails."""
    folder.mkdir()
    answer = folder / "answer.json"
    child = os.fork()
    if child == 0:
        found: dict[str, Any] = {}
        try:
            os.chdir(folder)
            found = do()
        except BaseException as exc:  # noqa: BLE001 -- the caller wants to know it
            found = {"error": f"{type(exc).__name__}: {exc}"}
        finally:
            answer.write_text(json.dumps(found))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    outcome: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {"error": "it was killed"}
    return outcome


def try_without(name: str, folder: Path, url: str, *, is_recorded: bool) -> dict[str, Any]:
    """Run the program without a name and return its outcome."""

    def do() -> dict[str, Any]:
        owned = _find_owner(name) if name else None
        if owned is not None:
            delattr(*owned)
        return _record(url, folder) if is_recorded else {"said": work(url, folder, _plain)}

    return in_child(folder, do)


def _is_asked_by_us(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__", "").startswith("spanreplay"))


def _hide(owner: Any, last: str) -> None:
    """From now on only code that is not spanreplay's finds an attribute of a module, or of a class's instances."""
    kind = owner if isinstance(owner, type) else type(owner)
    ask: Any = kind.__getattribute__

    def find(self: Any, asked: str) -> Any:
        if asked == last and _is_asked_by_us(sys._getframe(1)):
            gone = AttributeError(f"{last!r} is gone")
            gone.obj = self
            raise gone
        return ask(self, asked)

    if isinstance(owner, type):
        owner.__getattribute__ = find  # type: ignore[method-assign,assignment]  # for its instances
    else:
        owner.__class__ = type("Hiding", (kind,), {"__getattribute__": find})


def try_hidden(owner: Any, last: str, folder: Path, url: str) -> dict[str, Any]:
    """Run the recorded program while spanreplay's code doesn't find a name; return the outcome."""

    def refuse(_: str, asked: str) -> None:
        if asked == _named(owner, last):
            raise AttributeError(f"{last!r} is gone")

    def do() -> dict[str, Any]:
        _hide(owner, last)
        _spy(refuse)
        return _record(url, folder)

    return in_child(folder, do)


def try_refused(by: str, name: str, folder: Path, url: str) -> dict[str, Any]:
    """Run the recorded program while one of our modules doesn't find a name that it patches; return the outcome."""

    def refuse(module: str, asked: str) -> None:
        if (module, asked) == (by, name):
            raise AttributeError(f"{name!r} is gone")

    def do() -> dict[str, Any]:
        _spy(refuse)
        return _record(url, folder)

    return in_child(folder, do)


def main(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the recorded program's outcome without each private name, and without the last name each module patches."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    url = f"http://127.0.0.1:{server.server_port}/"
    serving = os.fork()  # not a thread in this process, because it forks
    if serving == 0:
        server.serve_forever()
    server.server_close()
    try:
        for number, name in enumerate(["", *find_names()]):
            bare = try_without(name, folder / f"bare{number}", url, is_recorded=False)
            owned = _find_owner(name) if name else None
            if "error" not in bare and not name.startswith("opentelemetry."):
                found = try_without(name, folder / f"recorded{number}", url, is_recorded=True)
                yield {"by": "", "name": name, "bare": bare["said"], **found}
            elif owned is not None and not isinstance(owned[0], type):  # those of classes are patched: below
                yield {"by": "", "name": name, **try_hidden(*owned, folder / f"hidden{number}", url)}
        for kind, last in find_attributes():
            hidden = try_hidden(kind, last, folder / f"{kind.__name__}{last}", url)
            yield {"by": "", "name": f"{kind.__name__}.{last}", **hidden}
        for by, names in find_patched(folder / "patched", url).items():
            yield {"by": by, "name": names[-1], **try_refused(by, names[-1], folder / by, url)}
    finally:
        os.kill(serving, signal.SIGKILL)
        os.waitpid(serving, 0)


if __name__ == "__main__":
    for row in main(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
