"""The place of a divergence in the agent's code, and fingerprints that identify it across replays; pure."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from spanreplay.report.shape import Divergence, Verdict, first_cause

__all__ = ["CodeLine", "causes", "downstream", "find_code_line", "fingerprints"]

_CODE: Final = re.compile(r"(?P<file>[^<>\s][^<>\n]*?):(?P<line>[1-9][0-9]{0,8})(?:\s+(?P<name>.*))?", re.DOTALL)


@dataclass(frozen=True)
class CodeLine:
    """A line of the agent's code; `file` is relative to the repository, or absolute."""

    file: str
    line: int
    name: str

    @property
    def uri(self) -> str:
        """The file as a URI reference: relative, or `file:`."""
        path = quote(self.file, errors="replace")
        return f"file://{path}" if self.file.startswith("/") else path


def find_code_line(divergence: Divergence, folder: str = "") -> CodeLine | None:
    """The place in the divergence's `code`; None if that is not a file, for example `<stdin>`.

    `folder` is the agent's working directory, relative to the repository.
    """
    match = _CODE.fullmatch(str(divergence.get("code") or ""))
    if match is None:
        return None
    file = match["file"] if match["file"].startswith("/") else posixpath.join(folder, match["file"])
    return CodeLine(posixpath.normpath(file), int(match["line"]), match["name"] or "")


def causes(verdict: Verdict) -> list[Divergence]:
    """The divergences that are not downstream; the first divergence if all are."""
    first = first_cause(verdict)
    found = [d for d in verdict["divergences"] if not d.get("downstream")]
    return found or ([] if first is None else [first])


def downstream(verdict: Verdict) -> list[Divergence]:
    """The divergences that follow from others."""
    known = {id(d) for d in causes(verdict)}
    return [d for d in verdict["divergences"] if id(d) not in known]


def fingerprints(divergences: list[Divergence]) -> list[str]:
    """A fingerprint per divergence, stable while lines and values change: the hash of boundary, kind and path.

    Equal ones are numbered, so that each stays a separate alert.
    """
    seen: Counter[str] = Counter()
    found = []
    for divergence in divergences:
        diffs = divergence.get("diff") or [{}]
        identity = [str(divergence.get(name) or "") for name in ("boundary", "kind")]
        text = "\0".join([*identity, str(diffs[0].get("path") or "")])
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
        seen[digest] += 1
        found.append(f"{digest}:{seen[digest]}")
    return found
