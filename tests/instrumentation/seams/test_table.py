"""The seam table: libraries are patched when they are imported; test_contract.py tests its rows."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.seams import table as _table
from spanreplay.seams.installed import InstalledSeams
from spanreplay.seams.table import SEAMS, Seam


def test_table_names_each_seam_once() -> None:
    """Names are unique, and every implementation can be imported without its library being loaded."""
    names = [seam.name for seam in SEAMS]
    assert len(set(names)) == len(names)
    assert all(seam.records and seam.triggers for seam in SEAMS)


def test_table_says_what_a_seam_records_and_what_not() -> None:
    """A seam that records calls names their kind and effect; no text breaks the tables in the documentation."""
    for seam in SEAMS:
        is_recording = not seam.records.startswith(("no calls", "only", "hashes"))
        assert is_recording == (seam.kind != "–") == (seam.effect != "–"), seam.name
        texts = (seam.records, seam.kind, seam.effect, seam.lanes, seam.versions, seam.omits)
        assert all(text and "|" not in text and "\n" not in text for text in texts), seam.name


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a library that is imported on demand."""
    name = "spanreplay_test_library"
    seam = types.ModuleType("spanreplay_test_seam")

    def install(module: Any, patches: Patches) -> None:
        patches.wrap(module, "f", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs) + 1)

    seam.install = install  # type: ignore[attr-defined]  # a module is made of attributes
    monkeypatch.setitem(sys.modules, seam.__name__, seam)
    monkeypatch.setattr(_table, "SEAMS", (Seam("test", "pytest", (name,), seam.__name__, "f"),))
    yield name
    sys.modules.pop(name, None)


def _load(name: str, **attributes: Any) -> Any:
    from importlib.machinery import ModuleSpec

    class Finder:
        """Finds the one library."""

        @staticmethod
        def find_spec(wanted: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return ModuleSpec(name, Finder()) if wanted == name else None  # type: ignore[arg-type]  # duck-typed loader

        @staticmethod
        def create_module(spec: ModuleSpec) -> None:
            return None

        @staticmethod
        def exec_module(module: Any) -> None:
            vars(module).update(attributes)

    sys.meta_path.append(Finder())
    try:
        return import_module(name)
    finally:
        sys.meta_path.pop()


def test_library_is_patched_when_it_is_imported(library: str) -> None:
    """The table imports nothing; the seam is active from the library's first moment, and gone after uninstall."""
    failures: list[Any] = []
    seams = InstalledSeams(lambda seam, exc: failures.append(exc))
    seams.register()
    assert library not in sys.modules
    assert seams.describe()[0]["state"] == "waiting"
    plain = lambda: 1  # noqa: E731 -- its identity is compared
    module = _load(library, f=plain)
    assert (module.f(), failures) == (2, [])
    assert seams.describe()[0]["state"] == "installed"
    seams.uninstall()
    assert module.f is plain


def test_library_that_is_imported_after_uninstall_stays_as_it_is(library: str) -> None:
    """An uninstalled table patches nothing."""
    seams = InstalledSeams(lambda seam, exc: None)
    seams.register()
    seams.uninstall()
    assert _load(library, f=lambda: 1).f() == 1


def test_library_of_another_shape_is_reported_and_imported_all_the_same(library: str) -> None:
    """A library without the function is loaded unpatched, and the failure is reported."""
    failures: list[tuple[str, str]] = []
    seams = InstalledSeams(lambda seam, exc: failures.append((seam.name, type(exc).__name__)))
    seams.register()
    module = _load(library, g=lambda: 1)
    assert module.g() == 1
    assert failures == [("test", "AttributeError")]
    (row,) = seams.describe()
    assert row["state"] == "failed"
    assert "AttributeError" in row["reason"]
    seams.uninstall()


def test_doctors_rows_name_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is not installed is reported as `absent`."""
    monkeypatch.setattr(_table, "SEAMS", (Seam("x", "no-such-distribution", ("no_such_module",), "x", "nothing"),))
    (row,) = InstalledSeams(lambda seam, exc: None).describe()
    assert (row["state"], row["version"]) == ("absent", "")
