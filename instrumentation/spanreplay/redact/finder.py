"""Find secrets in the texts of one run, encoded ones included, and remember the findings."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from spanreplay.model.own_threads import make_lock
from spanreplay.redact.decoding import (
    BYTES_MAX,
    DEPTH_MAX,
    find_binary,
    find_blobs,
    has_binary,
    has_blobs,
    iter_views,
    may_unescape,
)
from spanreplay.redact.document import TextEdit
from spanreplay.redact.memo import Memo
from spanreplay.redact.names import secret_name
from spanreplay.redact.recall import Recall
from spanreplay.redact.scanner import Edit, Scanner, find_opaque, resolve
from spanreplay.redact.tokens import TOKEN, Tokenizer

__all__ = ["Finder"]

KNOWN_ITEMS_MAX: Final = 256
KNOWN_BYTES_MIN: Final = 8
MADE_ITEMS_MAX: Final = 32
"""Only this many of the values that the agent drew as secrets are remembered, the first ones."""
MADE_BYTES_MIN: Final = 8
MADE_BYTES_MAX: Final = 128
UNMIXED_BYTES_MIN: Final = 12
_COMMON_WORDS: Final = frozenset(
    b"password passphrase username required optional function undefined authorization production development"
    b" localhost internal external disabled redacted changeme included excluded temporary anonymous".split()
)
"""Words that occur under a secret name by mistake; remembering them would redact them in every prompt."""


class _Found(NamedTuple):
    """Replace bytes [start, end) with `text`, because of `rule`."""

    start: int
    end: int
    text: str
    rule: str


class Finder:
    """Scans texts and learns values that are secret by context. Thread-safe to the extent that single operations are.

    `fail_closed` counts a failure and returns the token of a text; `redact` redacts a decoded text and names the rule
    that matched.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        scanner: Scanner,
        memo: Memo,
        fail_closed: Callable[[BaseException, str], str],
        redact: Callable[[str], tuple[str, str]],
    ) -> None:
        self._tokenizer = tokenizer
        self._scanner = scanner
        self._memo = memo
        self._fail_closed = fail_closed
        self._redact = redact
        self._known: dict[bytes, None] = {}
        self._learn(tokenizer.key_text)
        self.recall = Recall(tokenizer)
        self._inside = threading.local()
        self._made = 0
        self._made_lock = make_lock()

    def scan(self, texts: list[str]) -> None:
        """Scan new texts as one, separated by NUL, and remember the findings of each."""
        if len(texts) == 1:
            self.scan_alone(texts[0])
            return
        try:
            joined = "\x00".join(texts).encode("utf-8", "surrogatepass")
            if may_unescape(joined) or has_blobs(joined) or has_binary(joined):
                encoded = {text for text in texts if _holds_encoded(text)}
                if encoded:
                    for text in encoded:
                        self.scan_alone(text)
                    self.scan([text for text in texts if text not in encoded])
                    return
            touched = [(edit.start, edit.end) for edit in self._scan_bytes(joined)]
        except Exception:  # noqa: BLE001 - one bad text must not drop the others: scan each alone to find it
            for text in texts:
                self.scan_alone(text)
            return
        end = -1
        span = iter(touched)
        current = next(span, None)
        for text in texts:
            start = end + 1
            end = start + len(text.encode("utf-8", "surrogatepass")) if touched else start
            while current is not None and current[1] <= start:
                current = next(span, None)
            if current is not None and current[0] < end:
                self.scan_alone(text)
            else:
                self._memo.put(text, ())

    def scan_alone(self, text: str) -> tuple[TextEdit, ...]:
        """Return the edits that one text needs, and remember them."""
        try:
            encoded = text.encode("utf-8", "surrogatepass")
            found = self._place_in_text(text, encoded)
        except Exception as exc:  # noqa: BLE001 - fails closed: the text becomes one token
            found = (TextEdit(0, len(text), self._fail_closed(exc, text), "error"),)
        self._memo.put(text, found)
        return found

    def _place_in_text(self, text: str, encoded: bytes) -> tuple[TextEdit, ...]:
        edits = []
        is_ascii = len(encoded) == len(text)
        byte_position = character_position = 0
        for start, end, token, rule in self._find(encoded):
            if is_ascii:
                edits.append(TextEdit(start, end, token, rule))
                continue
            first = character_position + len(encoded[byte_position:start].decode("utf-8", "surrogatepass"))
            character_position = first + len(encoded[start:end].decode("utf-8", "surrogatepass"))
            byte_position = end
            edits.append(TextEdit(first, character_position, token, rule))
        return tuple(edits)

    def _find(self, encoded: bytes) -> list[_Found]:
        found = [self._as_found(encoded, edit) for edit in self._scan_bytes(encoded)]
        if may_unescape(encoded):
            for views in iter_views(encoded):
                seen = views[-1].text
                deeper = [self._as_found(seen, edit) for edit in self._scan_bytes(seen)]
                deeper = _merge(deeper, self._find_in_blobs(seen) if has_blobs(seen[:BYTES_MAX]) else [])
                for view in reversed(views):
                    deeper = [each._replace(start=at, end=to) for each in deeper for at, to in (view.place(*each[:2]),)]
                found = _merge(deeper, found)
        depth = getattr(self._inside, "depth", 0)
        if depth < DEPTH_MAX and has_blobs(encoded[:BYTES_MAX]):
            self._inside.depth = depth + 1
            try:
                found = _merge(found, self._find_in_blobs(encoded))
            finally:
                self._inside.depth = depth
        return _merge(found, self._find_in_binary(encoded))

    def _find_in_blobs(self, encoded: bytes) -> list[_Found]:
        found = []
        for blob in find_blobs(encoded[:BYTES_MAX]):
            clean, rule = self._redact(blob.text)
            if clean != blob.text:
                found.append(_Found(blob.start, blob.end, blob.encode(clean).decode("ascii"), rule))
        return found

    def _find_in_binary(self, encoded: bytes) -> list[_Found]:
        """Find keys in base64 of binary data; the result is base64 again, so a picture can still be decoded."""
        found = []
        for binary in find_binary(encoded):
            edits = resolve(binary.raw, self._scanner.scan_binary(binary.raw), tuple(self._known))
            if not edits:
                continue
            pieces: list[bytes] = []
            at = 0
            for edit in edits:
                token = self._tokenizer.token(binary.raw[edit.start : edit.end])
                pieces += (binary.raw[at : edit.start], token.encode("ascii"))
                at = edit.end
            clean = binary.encode(b"".join((*pieces, binary.raw[at:])))
            found.append(_Found(binary.start, binary.end, clean.decode("ascii"), edits[0].rule))
        return found

    def _as_found(self, encoded: bytes, edit: Edit) -> _Found:
        return _Found(edit.start, edit.end, self._tokenizer.token(encoded[edit.start : edit.end]), edit.rule)

    def _scan_bytes(self, encoded: bytes) -> list[Edit]:
        hits = self._scanner.scan(encoded)
        for hit in hits:
            if hit.rule.is_context:
                value = encoded[hit.start : hit.end]
                if not find_opaque(value, tuple(self._known.keys() - {value})):  # a known value inside stays whole
                    self._learn(value, is_sure=False)
        if self.recall:
            for value, is_sure in self.recall.find(encoded):
                self._learn(value, is_sure=is_sure)
        return resolve(encoded, hits, tuple(self._known))

    # ── Values known to be secret ───────────────────────────────────────────────────────────────────
    def learn_masked(self, item: str | int | float) -> None:
        """Remember a value that is secret by its key name."""
        if not isinstance(item, str):
            return
        self._learn(item.encode("utf-8", "surrogatepass"))
        scheme, _, credential = item.partition(" ")
        if scheme.lower() in ("bearer", "basic", "token"):
            self._learn(credential.strip().encode("utf-8", "surrogatepass"))

    def learn_made(self, value: object) -> None:
        """Remember a value of at least 64 bits drawn as a secret; only so many that they don't crowd out others."""
        if isinstance(value, bytes) and MADE_BYTES_MIN <= len(value) <= MADE_BYTES_MAX:
            forms = [value.hex().encode(), base64.urlsafe_b64encode(value).rstrip(b"="), base64.b64encode(value)]
        elif isinstance(value, str) and 2 * MADE_BYTES_MIN <= len(value) <= 2 * MADE_BYTES_MAX:
            forms = [value.encode("utf-8", "surrogatepass")]
        else:
            return
        with self._made_lock:
            self._made += 1
            is_more = self._made <= MADE_ITEMS_MAX
        for form in forms if is_more else ():
            self._learn(form)

    def known(self) -> tuple[bytes, ...]:
        """The values known to be secret."""
        return tuple(self._known)

    def go_back(self, known: Iterable[bytes], recalled: Mapping[bytes, bool]) -> None:
        """Reset the known values and the recalled tokens to these."""
        self._known = dict.fromkeys(known)
        self.recall.go_back(recalled)

    def adopt(self, values: Iterable[bytes]) -> None:
        """Take over values that another run of this process has learned to be secret."""
        for value in values:
            if len(self._known) < KNOWN_ITEMS_MAX:
                self._known.setdefault(value)

    def _learn(self, value: bytes, *, is_sure: bool = True) -> None:
        """Remember a value; from text, where a secret's name may occur by chance, only a long or mixed one."""
        if len(value) < KNOWN_BYTES_MIN or value in self._known or len(self._known) >= KNOWN_ITEMS_MAX:
            return
        if b"rdx-" in value and TOKEN.search(value):
            return
        lowered = value.lower()
        if lowered in _COMMON_WORDS or len(set(value)) < 4:
            return
        is_mixed = any(48 <= c <= 57 for c in value) and not value.isdigit()
        if len(value) < UNMIXED_BYTES_MIN and not is_mixed and (not is_sure or value.islower()):
            return  # `internet` may be a password, but is also a word
        if lowered.isalpha() and secret_name(value.decode("ascii")) is not None:
            return
        self._known[value] = None


def _holds_encoded(text: str) -> bool:
    encoded = text[:BYTES_MAX].encode("utf-8", "surrogatepass")
    return may_unescape(encoded) or has_blobs(encoded) or has_binary(encoded)


def _merge(first: Sequence[_Found], more: Sequence[_Found]) -> list[_Found]:
    """Merge both lists, sorted and disjoint; the text of the one from `first` replaces findings that overlap."""
    made: list[_Found] = []
    ranked = [(found.start, found.end, 0, found) for found in first] + [(f.start, f.end, 1, f) for f in more]
    ranked.sort(key=lambda each: (each[0], each[2], -each[1]))
    last_rank = 0
    for start, end, rank, found in ranked:
        if not made or start >= made[-1].end:
            made.append(found)
            last_rank = rank
            continue
        kept = made[-1] if last_rank <= rank else found
        last_rank = min(last_rank, rank)
        made[-1] = kept._replace(start=made[-1].start, end=max(made[-1].end, end))
    return made
