"""Reports for machines: the schema is committed, and unreadable input is refused in one line."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from spanreplay.model.errors import SpanreplayError
from spanreplay.report.json import dump, parse
from spanreplay.report.shape import EXIT_STATUS

GOLDEN = Path(__file__).with_name("golden")


def _schema() -> Any:
    return json.loads((files("spanreplay.report") / "divergence-1.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", sorted(p.stem for p in GOLDEN.glob("*.json")))
def test_s65_json_report_fits_its_schema(case: str) -> None:
    """Every verdict fits the committed schema, and a round trip changes nothing."""
    content = (GOLDEN / f"{case}.json").read_text(encoding="utf-8")
    written = dump(parse(content))
    read, found = json.loads(content), json.loads(written)
    assert {name: found[name] for name in read} == read
    assert not any(found[name] for name in found.keys() - read.keys())
    jsonschema.Draft202012Validator(_schema()).validate(json.loads(written))


def test_json_report_schema_is_itself_valid() -> None:
    """The schema is valid JSON Schema, and lists exactly the verdicts that have an exit status."""
    schema = _schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["verdict"]["enum"] == list(EXIT_STATUS)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "divergence/2", "verdict": "identical"}',
        '{"schema": "divergence/1", "verdict": "fine"}',
        '{"schema": "divergence/1", "verdict": "diverged", "divergences": {}}',
        '{"schema": "divergence/1", "verdict": "diverged", "divergences": ["x"]}',
        '{"schema": "divergence/1", "verdict": "diverged", "counts": []}',
    ],
    ids=[
        "empty",
        "torn",
        "array",
        "no schema",
        "newer",
        "unknown verdict",
        "not a list",
        "not objects",
        "counts",
    ],
)
def test_json_report_that_is_not_one_is_refused(content: str) -> None:
    """Anything that is not a verdict is refused."""
    with pytest.raises(SpanreplayError, match="cannot be read"):
        parse(content)
