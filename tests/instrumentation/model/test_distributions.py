"""Each installed file belongs to the distribution that lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanreplay.model.distributions import find_distribution, normalise


def _install(site: Path, name: str, *files: str) -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files), encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages with a namespace that many distributions share."""
    folder = tmp_path / "site-packages"
    _install(folder, "graph", "graph/errors.py", "graph/pregel/loop.py")
    for each in "abcdefgh":
        _install(folder, f"graph-{each}", f"graph/{each}/__init__.py", f"graph/{each}/part.py")
    _install(folder, "protobuf", "google/protobuf/message.py")
    _install(folder, "google-auth", "google/auth/__init__.py")
    _install(folder, "setuptools", "setuptools/__init__.py", "_distutils_hack/__init__.py")
    _install(folder, "PyOther", "another/__init__.py", "another.libs/part.so", "single.py")
    _install(folder, "attrs", "attr/__init__.py")
    return folder


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("graph/errors.py", "graph"),
        ("graph/pregel/loop.py", "graph"),
        ("graph/e/part.py", "graph-e"),
        ("google/protobuf/message.py", "protobuf"),
        ("google/auth/__init__.py", "google-auth"),
        ("_distutils_hack/__init__.py", "setuptools"),
        ("another/__init__.py", "pyother"),
        ("single.py", "pyother"),
        ("attr/__init__.py", "attrs"),
        ("not/listed.py", "not"),
    ],
)
def test_a_file_belongs_to_the_distribution_that_lists_its_folder(site: Path, file: str, owner: str) -> None:
    """Whether the distribution is named like the package, like a part of its path, or otherwise."""
    assert find_distribution(str(site / file)) == owner


@pytest.mark.parametrize("name", ["a.b_c-d", "a-._b--c_-d", "A-B_C.D"])
def test_names_of_distributions_are_compared_in_one_form(name: str) -> None:
    """Dots, underscores and hyphens, also several in a row, are one hyphen."""
    assert normalise(name) == "a-b-c-d"
