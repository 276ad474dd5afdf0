"""Releases of torch, triton and transformers: those that are promised are those that are tested."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    """Package → version, from a requirements file."""
    text = (ROOT / "tests" / "kernels" / name).read_text()
    return dict(re.findall(r"^(torch|triton|transformers)==([\d.]+)", text, re.MULTILINE))


def test_k11_oldest_releases_that_are_promised_are_tried() -> None:
    """The extra's lower bounds are the versions in the environment of that bound."""
    extra = re.search(r"^kernels = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra is not None
    promised = dict(re.findall(r"(torch|triton)>=([\d.]+)", extra[1]))
    tried = {name: version.removesuffix(".0") for name, version in pins("requirements-oldest.txt").items()}
    assert promised == {name: tried[name] for name in ("torch", "triton")}


def test_k11_both_ends_differ_from_what_the_tests_run_with() -> None:
    """The three sets of releases are in order, so that neither bound is tested twice."""
    files = ("requirements-oldest.txt", "requirements.txt", "requirements-newest.txt")
    for name in ("torch", "triton"):
        versions = [tuple(map(int, pins(each)[name].split("."))) for each in files]
        assert versions == sorted(set(versions)), name


@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_k11_matrix_tries_each_end(end: str) -> None:
    """`make matrix` compiles for sm_90, runs the quick benchmark, and the tests that docs/kernels.md names."""
    text = (ROOT / "tools" / "matrix.sh").read_text()
    for tried in ("tests/kernels/ops", "tests/kernels/engines", "audit", "custom_ops", "mode", "stance"):
        assert tried in text.partition("run_kernels() {")[2].partition("\n}")[0]
    assert re.search(rf"for end in .*\b{end}\b", text)
    assert 'run_kernels "$end"' in text


def test_k11_this_environment_is_one_of_the_three() -> None:
    """Tests prove nothing for releases that are not named."""
    here = {name: metadata.version(name).split("+")[0] for name in ("torch", "triton", "transformers")}
    assert here in [pins(f"requirements{end}.txt") for end in ("", "-oldest", "-newest")]
