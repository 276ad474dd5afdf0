"""Redact texts and values of one run: find, remember, replace, until nothing is left to replace."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from spanreplay.config import BODY_BYTES_MAX, MEMO_ITEMS_MAX
from spanreplay.redact.document import NOT_JSON, Scalars, TextEdit, flatten, graft, parse_json, place_in_json, splice
from spanreplay.redact.events import Part, cut_events, distribute, group_pieces
from spanreplay.redact.known import KnownClean
from spanreplay.redact.names import secret_name
from spanreplay.redact.rules import RULES, Rule
from spanreplay.redact.scanner import Edit, Scanner, resolve
from spanreplay.redact.tokens import TOKEN, Tokenizer

__all__ = ["Redactor", "RunRedactor"]

logger = logging.getLogger(__name__)

Counts = MutableMapping[str, int]
T = TypeVar("T")

PASSES_MAX: Final = 5
JSON_DEPTH_MAX: Final = 6
STRUCTURE_STARTS: Final = '{[" \t\r\n' + "deir:"
"""What JSON begins with; and `data:`, `event:`, `id:`, `retry:`, `:`."""
TEXT_CHARS_MIN: Final = 6
"""No rule can match a shorter text."""
KNOWN_ITEMS_MAX: Final = 256
KNOWN_BYTES_MIN: Final = 8
MEMO_CHARS_MAX: Final = 2 * BODY_BYTES_MAX
_COMMON_WORDS: Final = frozenset(
    b"password passphrase username required optional function undefined authorization production development"
    b" localhost internal external disabled redacted changeme included excluded temporary anonymous".split()
)
"""Words that stand under a secret name by mistake; remembering them would blot them out of every prompt."""


class Redactor:
    """Holds the key and the rules; `run()` gives each run a redactor with its own memory. Thread-safe."""

    def __init__(self, key: bytes, key_id: str, rules: Sequence[Rule] = RULES) -> None:
        self._tokenizer = Tokenizer(key, key_id)
        self._scanner = Scanner(rules)
        self._warned: set[str] = set()  # shared by all runs: one warning per cause, not per run

    def run(self) -> RunRedactor:
        """A redactor for one run, with nothing remembered yet."""
        return RunRedactor(self._tokenizer, self._scanner, self._warned)


class _Memo:
    """Texts and what was found in them, in two generations, so that forgetting costs nothing.

    Reads and writes are single dictionary operations: threads may lose an entry, never corrupt one.
    """

    def __init__(self, items_max: int, chars_max: int) -> None:
        self._items_max = items_max // 2
        self._chars_max = chars_max // 2
        self._young: dict[str, tuple[TextEdit, ...]] = {}
        self._old: dict[str, tuple[TextEdit, ...]] = {}
        self._chars = 0

    def get(self, text: str) -> tuple[TextEdit, ...] | None:
        edits = self._young.get(text)
        if edits is None:
            edits = self._old.get(text)
            if edits is not None:
                self.put(text, edits)
        return edits

    def put(self, text: str, edits: tuple[TextEdit, ...]) -> None:
        if len(text) > self._chars_max:
            return
        if len(self._young) >= self._items_max or self._chars + len(text) > self._chars_max:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = edits
        self._chars += len(text)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class _Document:
    """The scalars of one value, and the JSON texts and event streams among them as documents of their own."""

    __slots__ = ("nested", "scalars", "suspects")

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.suspects: list[int] = []
        """Texts that are new, or in which something was found before."""
        self.nested: dict[int, _Document | _Stream] = {}


class _Stream(NamedTuple):
    """A text of events; each part is a document whose only scalar, or whose JSON, is the part's text."""

    parts: list[Part]
    documents: list[_Document]
    depth: int


class RunRedactor:
    """Redacts everything of one run. Thread-safe; made by `Redactor.run`.

    Equal texts always give equal results within a run, so that history that is sent again keeps its key:
    what was found in a text the first time is remembered. Values known to be secret only by context (a key
    name, a URL, `Bearer`) are remembered too, and redacted wherever a text not seen before contains them.

    Every method fails closed: if anything goes wrong the value becomes one token and `errors` grows.
    Every method adds what it redacted to `counts` (rule → hits), where given.
    """

    def __init__(self, tokenizer: Tokenizer, scanner: Scanner, warned: set[str]) -> None:
        self._tokenizer = tokenizer
        self._scanner = scanner
        self._memo = _Memo(MEMO_ITEMS_MAX, MEMO_CHARS_MAX)
        self._clean_structures = _Memo(MEMO_ITEMS_MAX, MEMO_CHARS_MAX)
        """Texts that begin like JSON or events, and in whose parts nothing was found; as scalars of a whole value."""
        self._clean = KnownClean(self._is_text_clean, TEXT_CHARS_MIN)
        self._known: dict[bytes, None] = {}
        self._errors = 0
        self._errors_lock = threading.RLock()
        self._warned = warned

    def derive(self, purpose: bytes) -> bytes:
        """A key for another purpose, the same wherever the redaction key is the same."""
        return self._tokenizer.derive(purpose)

    @property
    def fingerprint(self) -> str:
        """Which key the tokens are made with: equal keys give equal fingerprints, and nothing of a key is told."""
        return self._tokenizer.token(b"\0the fingerprint of a redaction key")

    @property
    def errors(self) -> int:
        """How often a value was dropped because its redaction failed."""
        return self._errors

    def text(self, text: str, counts: Counts | None = None) -> str:
        """The text with every secret replaced by its token; JSON in it is understood."""
        return self._guard(lambda: self._redact_text(text, counts), lambda: self._tokenizer.token_of(text))

    def json_text(self, text: str, counts: Counts | None = None) -> str:
        """The JSON text with secrets replaced inside its literals, and otherwise byte for byte the same."""
        return self._guard(lambda: self._redact_text(text, counts), lambda: f'"{self._tokenizer.token_of(text)}"')

    def value(self, value: T, counts: Counts | None = None) -> T:
        """The JSON-able value, redacted; the very same object if there was nothing to redact.

        Also takes what OpenTelemetry attributes hold: tuples and bytes.
        """
        try:
            if self._clean.prune(value) is None:
                return value
        except Exception:  # noqa: BLE001, S110 -- the same happens again below, where it is counted
            pass
        # A value that cannot be walked cannot be hashed for a token of its own either.
        redacted = self._guard(lambda: self._redact_value(value, counts), lambda: self._tokenizer.blank)
        return cast("T", redacted)

    def write_clean(self, value: Any) -> str:
        """The JSON text of a value that the codec writes as it is and in which nothing is to be redacted; '' of others.

        For what is small and known from before; `value` decides on everything else.
        """
        try:
            return self._clean.write(value)
        except Exception:  # noqa: BLE001 -- the same happens again in `value`, where it is counted
            return ""

    def headers(self, pairs: Iterable[Sequence[str | bytes]], counts: Counts | None = None) -> list[list[str]]:
        """HTTP headers with the values of the secret ones replaced as a whole."""
        listed = [[_header_text(name), _header_text(value)] for name, value in pairs]
        redacted: Any = self.value({"headers": listed}, counts)
        if isinstance(redacted, str):  # failed closed
            return [[name, self._tokenizer.blank] for name, _ in listed]
        return [list(pair) for pair in redacted["headers"]]

    def find_edits(self, text: str, counts: Counts | None = None) -> Sequence[TextEdit]:
        """One pass over a text: what has to be replaced, in its own offsets.

        Not guarded; for those who place the edits themselves (streams).
        """
        document = self._read([text])
        return self._edits_of(document, counts).get(0, ())

    def chunks(self, chunks: Sequence[str], counts: Counts | None = None) -> list[str]:
        """The chunks of one text, redacted as that text; see `streams.redact_chunks`."""
        from spanreplay.redact.streams import redact_chunks  # here, because streams needs the engine

        return redact_chunks(self, chunks, counts)

    def fail_closed(self, cause: BaseException, text: str) -> str:
        """Count a failure and give the token that stands for the text."""
        self._count_error(cause)
        try:
            return self._tokenizer.token_of(text)
        except Exception:  # noqa: BLE001 - failing closed must not fail
            return self._tokenizer.blank

    # ── Passes ──────────────────────────────────────────────────────────────────────────────────────
    def _redact_text(self, text: str, counts: Counts | None) -> str:
        for _ in range(PASSES_MAX):
            edits = self.find_edits(text, counts)
            if not edits:
                return text
            text = splice(text, edits)
        raise RecursionError("redaction does not settle")

    def _redact_value(self, value: T, counts: Counts | None) -> Any:
        rest = self._clean.prune(value)
        if rest is None:
            return value
        if rest is not value and self._is_all_clean(rest):
            self._clean.remember(value)
            return value
        current: Any = value
        for _ in range(PASSES_MAX):
            document = self._read(current)
            edits = self._edits_of(document, counts)
            if not edits:
                self._remember_clean(document)
                self._clean.remember(current)
                return current
            replaced = {
                index: splice(item, found) if isinstance(item, str) else found[0].text
                for index, found in edits.items()
                for item in (document.scalars.items[index],)
            }
            current = graft(current, replaced, itertools.count())
        raise RecursionError("redaction does not settle")

    # ── What is known from before ───────────────────────────────────────────────────────────────────
    def _is_all_clean(self, value: object) -> bool:
        document = self._read(value)
        if self._edits_of(document, None):
            return False
        self._remember_clean(document)
        return True

    def _remember_clean(self, document: _Document) -> None:
        for item in document.scalars.items:
            if isinstance(item, str) and len(item) >= TEXT_CHARS_MIN and item[0] in STRUCTURE_STARTS:
                self._clean_structures.put(item, ())

    def _is_text_clean(self, text: str) -> bool:
        if len(text) < TEXT_CHARS_MIN:
            return True
        memo = self._clean_structures if text[0] in STRUCTURE_STARTS else self._memo
        return memo.get(text) == ()

    # ── (1) Read: flatten the value, open JSON texts, learn secrets by key name, scan new texts ─────
    def _read(self, value: object) -> _Document:
        unseen: dict[str, None] = {}
        document = self._open(value, 0, unseen)
        if unseen:
            self._scan(list(unseen))
        return document

    def _open(self, value: object, depth: int, unseen: dict[str, None]) -> _Document:
        scalars = Scalars()
        flatten(value, scalars)
        document = _Document(scalars)
        masked = set(scalars.masked)
        for index in scalars.masked:
            self._learn_masked(scalars.items[index])
        known = self._memo.get
        for index, item in enumerate(scalars.items):
            if not isinstance(item, str) or len(item) < TEXT_CHARS_MIN or index in masked:
                continue
            if depth < JSON_DEPTH_MAX and item[0] in STRUCTURE_STARTS:
                nested = self._open_structure(item, depth + 1, unseen)
                if nested is not None:
                    document.nested[index] = nested
                    continue
            found = known(item)
            if found is None:
                unseen[item] = None
            if found != ():
                document.suspects.append(index)
        return document

    def _open_structure(self, text: str, depth: int, unseen: dict[str, None]) -> _Document | _Stream | None:
        parsed = parse_json(text)
        if parsed is not NOT_JSON:
            return self._open(parsed, depth, unseen)
        parts = cut_events(text)
        if parts is None:
            return None
        documents = [self._open([part.text] if part.tree is NOT_JSON else part.tree, depth, unseen) for part in parts]
        return _Stream(parts, documents, depth)

    def _scan(self, texts: list[str]) -> None:
        """Scan new texts as one, separated by NUL, and remember what was found in each."""
        if len(texts) == 1:
            self._scan_alone(texts[0])
            return
        try:
            joined = "\x00".join(texts).encode("utf-8", "surrogatepass")
            touched = [(edit.start, edit.end) for edit in self._scan_bytes(joined)]
        except Exception:  # noqa: BLE001 - one bad text must not drop the others: find out which it is
            for text in texts:
                self._scan_alone(text)
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
                self._scan_alone(text)
            else:
                self._memo.put(text, ())

    def _scan_alone(self, text: str) -> tuple[TextEdit, ...]:
        try:
            encoded = text.encode("utf-8", "surrogatepass")
            found = self._place_in_text(text, encoded)
        except Exception as exc:  # noqa: BLE001 - fails closed: the text becomes one token
            found = (TextEdit(0, len(text), self.fail_closed(exc, text), "error"),)
        self._memo.put(text, found)
        return found

    def _place_in_text(self, text: str, encoded: bytes) -> tuple[TextEdit, ...]:
        edits = []
        is_ascii = len(encoded) == len(text)
        byte_position = character_position = 0
        for start, end, rule in self._scan_bytes(encoded):
            token = self._tokenizer.token(encoded[start:end])
            if is_ascii:
                edits.append(TextEdit(start, end, token, rule))
                continue
            first = character_position + len(encoded[byte_position:start].decode("utf-8", "surrogatepass"))
            character_position = first + len(encoded[start:end].decode("utf-8", "surrogatepass"))
            byte_position = end
            edits.append(TextEdit(first, character_position, token, rule))
        return tuple(edits)

    def _scan_bytes(self, encoded: bytes) -> list[Edit]:
        hits = self._scanner.scan(encoded)
        for hit in hits:
            if hit.rule.is_context:
                self._learn(encoded[hit.start : hit.end])
        return resolve(encoded, hits, tuple(self._known))

    # ── (2) Edit: put together what was found ───────────────────────────────────────────────────────
    def _edits_of(self, document: _Document, counts: Counts | None) -> dict[int, Sequence[TextEdit]]:
        scalars = document.scalars
        edits: dict[int, Sequence[TextEdit]] = {}
        for index in scalars.masked:
            edit = self._mask(scalars.items[index])
            if edit is not None:
                edits[index] = (edit,)
                _count(counts, (edit,))
        for index, nested in document.nested.items():
            if isinstance(nested, _Stream):
                inner = self._edits_of_stream(nested, counts)
            else:
                inner = _place(str(scalars.items[index]), nested, self._edits_of(nested, counts))
            if inner:
                edits[index] = inner
        for index in document.suspects:
            item = str(scalars.items[index])
            found = self._memo.get(item)
            if found is None:  # forgotten since it was read
                found = self._scan_alone(item)
            if found:
                edits[index] = found
                _count(counts, found)
        return edits

    def _edits_of_stream(self, stream: _Stream, counts: Counts | None) -> list[TextEdit]:
        """What is in one event first; when nothing is left there, what is cut into pieces over several."""
        edits = [self._edits_of(document, counts) for document in stream.documents]
        if not any(edits):
            for pieces in group_pieces(stream.parts):
                self._edit_pieces(stream, pieces, edits, counts)
        placed: list[TextEdit] = []
        for part, document, found in zip(stream.parts, stream.documents, edits, strict=True):
            if found:
                inner = found[0] if part.tree is NOT_JSON else _place(part.text, document, found)
                placed.extend(e._replace(start=e.start + part.start, end=e.end + part.start) for e in inner)
        return placed

    def _edit_pieces(
        self,
        stream: _Stream,
        pieces: Sequence[tuple[int, int]],
        edits: list[dict[int, Sequence[TextEdit]]],
        counts: Counts | None,
    ) -> None:
        texts = [str(stream.documents[part].scalars.items[scalar]) for part, scalar in pieces]
        unseen: dict[str, None] = {}
        joined = self._open(["".join(texts)], stream.depth, unseen)
        if unseen:
            self._scan(list(unseen))
        found = self._edits_of(joined, counts).get(0, ())
        for piece, edit in distribute([len(text) for text in texts], found):
            part, scalar = pieces[piece]
            edits[part][scalar] = [*edits[part].get(scalar, ()), edit]

    def _mask(self, item: str | int | float) -> TextEdit | None:
        """A scalar that is secret by its key name becomes one token, unless it is empty or one already."""
        text = item if isinstance(item, str) else repr(item)
        encoded = text.encode("utf-8", "surrogatepass")
        if not encoded or TOKEN.fullmatch(encoded):
            return None
        return TextEdit(0, len(text), self._tokenizer.token(encoded), "secret_key_name")

    # ── Values known to be secret ───────────────────────────────────────────────────────────────────
    def _learn_masked(self, item: str | int | float) -> None:
        if not isinstance(item, str):
            return
        self._learn(item.encode("utf-8", "surrogatepass"))
        scheme, _, credential = item.partition(" ")
        if scheme.lower() in ("bearer", "basic", "token"):
            self._learn(credential.strip().encode("utf-8", "surrogatepass"))

    def _learn(self, value: bytes) -> None:
        if len(value) < KNOWN_BYTES_MIN or value in self._known or len(self._known) >= KNOWN_ITEMS_MAX:
            return
        if b"rdx-" in value and TOKEN.search(value):
            return
        lowered = value.lower()
        if lowered in _COMMON_WORDS or len(set(value)) < 4:
            return
        if lowered.isalpha() and secret_name(value.decode("ascii")) is not None:
            return
        self._known[value] = None

    # ── Failing closed ──────────────────────────────────────────────────────────────────────────────
    def _guard(self, redact: Callable[[], T], fallback: Callable[[], str]) -> T | str:
        try:
            return redact()
        except Exception as exc:  # noqa: BLE001 - fails closed: never the raw value, never into the agent
            self._count_error(exc)
            try:
                return fallback()
            except Exception:  # noqa: BLE001 - failing closed must not fail
                return self._tokenizer.blank

    def _count_error(self, cause: BaseException) -> None:
        with self._errors_lock:
            self._errors += 1
        kind = type(cause).__name__
        if kind not in self._warned and len(self._warned) < 16:
            self._warned.add(kind)
            logger.warning("redaction failed with %s; the value was dropped", kind)


def _place(text: str, document: _Document, edits: Mapping[int, Sequence[TextEdit]]) -> list[TextEdit]:
    return place_in_json(text, document.scalars, edits) if edits else []


def _count(counts: Counts | None, edits: Iterable[TextEdit]) -> None:
    if counts is not None:
        for edit in edits:
            counts[edit.rule] = counts.get(edit.rule, 0) + 1


def _header_text(part: str | bytes) -> str:
    return part.decode("latin-1") if isinstance(part, bytes) else part
