"""Cassettes of other tools: where their recordings go, and what is said about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.terminal import counting, echo, print_json, say
from spanreplay.model.errors import ConfigError, SourceError, SpanreplayError
from spanreplay.recording.whole_file import write_atomically
from spanreplay.testing.file_names import FOLDER, safe_name

__all__ = ["import_cassettes"]

_CASSETTES: Final = "cassettes"
_ENDINGS: Final = (".gz", ".yaml", ".yml", ".json")
_HOLES_SAID_MAX: Final = 5


@dataclass(frozen=True)
class _Written:
    """One cassette, and the recording that was made of it."""

    cassette: str
    file: Path
    run_id: str
    calls: int
    left_out: int
    holes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "cassette": self.cassette,
            "file": str(self.file),
            "run_id": self.run_id,
            "calls": self.calls,
            "left_out": self.left_out,
            "holes": list(self.holes),
        }


def import_cassettes(
    files: Sequence[tuple[str, bytes]], output: str | None, replace: Sequence[str], *, as_json: bool
) -> None:
    """Write a `.replay` file for each cassette; one that can't be read doesn't keep the others from being written.

    Raises: click.exceptions.Exit with status 1 if any failed; ConfigError if two of them have the same target.
    """
    values = _read_values(replace)
    targets = _choose_targets([name for name, _ in files], output)
    written: list[_Written] = []
    failed: list[SpanreplayError] = []
    with counting("importing cassettes", len(files)) as told:
        for (name, content), target in zip(files, targets, strict=True):
            try:
                written.append(_import(name, content, target, values))
            except SpanreplayError as exc:
                if len(files) == 1:
                    raise
                failed.append(exc)
            told(len(written) + len(failed))
    if as_json:
        found = [each.to_json() for each in written]
        print_json(found[0] if len(files) == 1 else found)
    else:
        _tell(written)
    if failed:
        from spanreplay.cli.app import print_error

        for error in failed:
            print_error(error)
        say(f"{len(failed)} of {len(files)} cassettes could not be imported")
        raise click.exceptions.Exit(1)


def _read_values(replace: Sequence[str]) -> dict[str, str]:
    """Placeholder → value. Raises: ConfigError."""
    values: dict[str, str] = {}
    for each in replace:
        placeholder, equals, value = each.partition("=")
        if not (placeholder and equals):
            raise ConfigError(f"--replace {each!r} is not PLACEHOLDER=VALUE", hint="--replace '<USER>=ada'")
        values[placeholder] = value
    return values


def _import(name: str, content: bytes, target: Path, values: Mapping[str, str]) -> _Written:
    from spanreplay.activate.imported import record_cassette
    from spanreplay.recording.cassettes import read_cassette

    made = record_cassette(read_cassette(content, name, values), _stem(name))
    write_atomically(target, made.content, hint="choose another place with -o", makes_folder=True)
    return _Written(name, target, made.run_id, made.calls, made.left_out, made.holes)


def _tell(written: Sequence[_Written]) -> None:
    for each in written:
        echo(str(each.file))
        for hole in each.holes[:_HOLES_SAID_MAX]:
            say(f"  {hole}")
        if each.left_out:
            say(f"  {each.left_out} requests of telemetry are left out: a replay answers them itself")
    if written:
        calls = sum(each.calls for each in written)
        say(
            f"imported {calls} requests of {len(written)} {'cassette' if len(written) == 1 else 'cassettes'}; "
            f"replay one: spanreplay replay {written[0].file} -- CMD"
        )


def _choose_targets(names: Sequence[str], output: str | None) -> list[Path]:
    """The file of each cassette's recording. Raises: ConfigError, SourceError."""
    if output is not None and Path(output).suffix == ".replay":
        if len(names) > 1:
            raise ConfigError(f"{len(names)} cassettes can't go into the one file {output}", hint="-o FOLDER")
        return [Path(output)]
    targets = [_choose_target(name, output) for name in names]
    taken: dict[Path, str] = {}
    for name, target in zip(names, targets, strict=True):
        if target in taken:
            raise ConfigError(
                f"{taken[target]} and {name} would both become {target}", hint="import them one by one, with -o FILE"
            )
        taken[target] = name
    return targets


def _choose_target(name: str, folder: str | None) -> Path:
    if name == "-":
        raise SourceError("a cassette from standard input needs a name", hint="-o FILE.replay")
    path = Path(name)
    file = f"{safe_name(_stem(name))}.replay"
    if folder is not None:
        return Path(folder) / file
    parts = list(path.parent.parts)
    if _CASSETTES in parts:  # tests/cassettes/test_a/test_b.yaml → tests/recordings/test_a/test_b.replay
        last = len(parts) - 1 - parts[::-1].index(_CASSETTES)
        parts[last] = FOLDER
    return Path(*parts, file)


def _stem(name: str) -> str:
    """A cassette's name without its folder and its endings."""
    stem = Path(name).name
    for ending in _ENDINGS:
        stem = stem.removesuffix(ending)
    return stem or "cassette"
