"""`spanreplay import` of cassettes: where recordings go, and what is said about those that can't be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instrumentation.cli.conftest import Invoke

TELEMETRY = "https://api.smith.langchain.com/runs/multipart"


def _write(path: Path, *exchanges: tuple[str, int, dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    interactions = [
        {
            "request": {"method": "POST" if uri == TELEMETRY else "GET", "uri": uri, "headers": {}, "body": None},
            "response": {"status": {"code": code, "message": ""}, "headers": headers, "body": {"string": "x"}},
        }
        for uri, code, headers in exchanges
    ]
    path.write_text(json.dumps({"version": 1, "interactions": interactions}))
    return str(path)


def test_w6_recordings_go_where_the_plug_in_looks(here: Path, spanreplay: Invoke) -> None:
    """A cassette becomes the recording of the test of its name: beside the cassettes folder, in `recordings`."""
    one = _write(Path("tests/cassettes/test_a/test_b.yaml"), ("http://a.example", 200, {}))
    many = _write(Path("tests/cassettes/test_a/test_c[x y].yaml"), ("http://a.example", 200, {}))
    done = spanreplay("import", one, many)
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert first == "tests/recordings/test_a/test_b.replay"
    from spanreplay.testing.pytest_plugin import find_source

    wanted, _ = find_source("", here / "tests/test_a.py", "tests/test_a.py::test_c[x y]")
    assert here / second == Path(wanted)
    assert Path(second).is_file()
    shown = spanreplay("show", first)
    assert "GET a.example" in shown.output


def test_w6_redirects_are_one_call_and_telemetry_is_left_out(here: Path, spanreplay: Invoke) -> None:
    """A chain of redirects is the one call that the client made; reports of other tools are answered by the replay."""
    cassette = _write(
        Path("a.json"),
        ("http://a.example/1", 302, {"Location": ["/2"]}),
        ("http://a.example/2", 301, {"location": ["http://b.example/3"]}),
        ("http://b.example/3", 200, {}),
        ("http://b.example/3", 302, {"location": ["/4"]}),
        ("http://b.example/5", 200, {}),
        (TELEMETRY, 200, {}),
    )
    done = spanreplay("import", cassette, "--json", "-o", "here.replay")
    found = json.loads(done.stdout)
    assert (found["file"], found["calls"], found["left_out"], found["holes"]) == ("here.replay", 3, 1, [])


def test_w6_one_bad_cassette_does_not_keep_the_others_back(here: Path, spanreplay: Invoke) -> None:
    """Each cassette that can't be read is named with its reason, and the exit status is 1."""
    good = _write(Path("good.yaml"), ("http://a.example", 200, {}))
    Path("bad.yaml").write_text("interactions:\n- 1\n")
    Path("empty.yaml").write_text("interactions: []\n")
    done = spanreplay("import", good, "bad.yaml", "empty.yaml")
    assert (done.exit_code, done.stdout) == (1, "good.replay\n")
    assert "error: bad.yaml:2: interaction 1: it is not a mapping" in done.stderr
    assert "error: empty has no request to serve" in done.stderr
    assert "2 of 3 cassettes could not be imported" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/x.yaml", "b/x.yaml", "-o", "out"], "would both become out/x.replay"),
        (["a/x.yaml", "b/x.yaml", "-o", "x.replay"], "2 cassettes can't go into the one file x.replay"),
        (["a/x.yaml", "--replace", "=x"], "is not PLACEHOLDER=VALUE"),
    ],
)
def test_w6_unclear_targets_are_refused(here: Path, spanreplay: Invoke, arguments: list[str], message: str) -> None:
    """Two cassettes never overwrite each other's recording."""
    for folder in ("a", "b"):
        _write(Path(folder, "x.yaml"), ("http://a.example", 200, {}))
    done = spanreplay("import", *arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert not [*here.rglob("*.replay")]
