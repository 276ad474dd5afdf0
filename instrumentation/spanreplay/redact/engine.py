"""Redact texts and values of one run: find secrets, remember and replace them, until none is left."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from spanreplay.model.config import BODY_BYTES_MAX, MEMO_ITEMS_MAX
from spanreplay.model.own_threads import make_lock
from spanreplay.redact.document import (
    NOT_JSON,
    PASSES_MAX,
    Counts,
    Scalars,
    TextEdit,
    flatten,
    graft,
    parse_json,
    place_in_json,
    splice,
)
from spanreplay.redact.events import Group, Part, cut_events, group_pieces, group_values, is_streamed_array
from spanreplay.redact.finder import Finder
from spanreplay.redact.known import KnownClean
from spanreplay.redact.memo import Memo
from spanreplay.redact.quick_look import JSON_DEPTH_MAX, STRUCTURE_STARTS, TEXT_CHARS_MIN, QuickLook
from spanreplay.redact.rules import RULES, Rule
from spanreplay.redact.scanner import Scanner
from spanreplay.redact.streams import redact_chunks
from spanreplay.redact.tokens import TOKEN, Tokenizer

__all__ = ["Learned", "Redactor", "RunRedactor"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

MEMO_CHARS_MAX: Final = BODY_BYTES_MAX // 2


class Redactor:
    """Holds the key and the rules; `run()` gives each run a redactor with its own memory. Thread-safe."""

    def __init__(self, key: bytes, key_id: str, rules: Sequence[Rule] = RULES) -> None:
        self._tokenizer = Tokenizer(key, key_id)
        self._scanner = Scanner(rules)
        self._warned: set[str] = set()  # shared by all runs: one warning per cause, not per run

    def run(self) -> RunRedactor:
        """A redactor for one run, with nothing remembered yet."""
        return RunRedactor(self._tokenizer, self._scanner, self._warned)


class _Document:
    """The scalars of one value; JSON texts and event streams among them are nested documents."""

    __slots__ = ("nested", "scalars", "suspects")

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.suspects: list[int] = []
        """Indices of texts that are new, or in which a secret was found before."""
        self.nested: dict[int, _Document | _Stream] = {}


class _Stream(NamedTuple):
    """A text of events, and the texts that are spread over several of them."""

    parts: list[Part]
    joined: list[tuple[Group, _Document]]
    depth: int


class Learned(NamedTuple):
    """A redactor's knowledge at one moment: secret values, and tokens of the responses that a replay has served."""

    known: tuple[bytes, ...]
    recalled: Mapping[bytes, bool]


class RunRedactor:
    """Redacts everything of one run. Thread-safe; made by `Redactor.run`.

    Equal texts always give equal results within a run, so that resent history keeps its key: the findings of the
    first time are remembered. Values known to be secret only by context (a key name, a URL, `Bearer`) are
    remembered too, and redacted wherever a text not seen before contains them.

    Every method fails closed: if anything goes wrong, the value becomes one token and `errors` grows.
    Every method adds its redactions to `counts` (rule → hits) if given.
    """

    def __init__(self, tokenizer: Tokenizer, scanner: Scanner, warned: set[str]) -> None:
        self._tokenizer = tokenizer
        self._memo = Memo(MEMO_ITEMS_MAX, MEMO_CHARS_MAX)
        self._finder = Finder(tokenizer, scanner, self._memo, self.fail_closed, self._redact_decoded)
        self._clean_structures = Memo(MEMO_ITEMS_MAX, MEMO_CHARS_MAX)
        """Texts that begin like JSON or events and whose parts are clean; only as scalars of a whole value."""
        self._clean = KnownClean(self._is_text_clean, TEXT_CHARS_MIN)
        self._quick = self._new_quick()
        self._errors = 0
        self._errors_lock = make_lock()
        self._warned = warned

    def derive(self, purpose: bytes) -> bytes:
        """Derive a key for another purpose; equal redaction keys give equal derived keys."""
        return self._tokenizer.derive(purpose)

    def learn_made(self, value: object) -> None:
        """Remember a value that the agent drew from a source of secrets, in each form in which it may be written."""
        self._finder.learn_made(value)

    def token(self, text: str) -> str:
        """The token of a text, which is not treated as a secret elsewhere."""
        return self._tokenizer.make(text.encode("utf-8", "surrogatepass"))

    def recall(self, served: str) -> None:
        """Note the tokens in a response served by a replay: their values are secret from now on, as when recorded."""
        if "rdx-" in served:
            self._finder.recall.add(served)

    def find_foreign_token(self, text: str) -> str:
        """The first token in a redacted text that was already there before its redaction; '' if there is none."""
        return self._finder.recall.find_foreign(text)

    @property
    def fingerprint(self) -> str:
        """Identifies the key of the tokens: equal keys give equal fingerprints, which reveal nothing about the key."""
        return self._tokenizer.token(b"\0the fingerprint of a redaction key")

    @property
    def errors(self) -> int:
        """The number of values dropped because their redaction failed."""
        return self._errors

    def text(self, text: str, counts: Counts | None = None) -> str:
        """Replace every secret in the text with its token; JSON in the text is parsed."""
        if type(text) is str and self._is_text_clean(text) and not self._finder.recall:
            return text
        return self._guard(lambda: self._redact_text(text, counts), lambda: self._tokenizer.token_of(text))

    def json_text(self, text: str, counts: Counts | None = None) -> str:
        """Replace secrets inside the literals of a JSON text; the rest stays byte for byte."""
        return self._guard(lambda: self._redact_text(text, counts), lambda: f'"{self._tokenizer.token_of(text)}"')

    def value(self, value: T, counts: Counts | None = None) -> T:
        """Redact a JSON-able value; return the same object if there is nothing to redact.

        Also accepts tuples and bytes, which OpenTelemetry attributes may hold.
        """
        try:
            rest = self._clean.prune(value)
            if rest is None:
                return value
            if self._quick.is_value_clean(rest):
                self._clean.remember(value)
                return value
        except Exception:  # noqa: BLE001, S110 -- the same happens again below, where it is counted
            pass
        # A value that cannot be walked cannot be hashed either, so its token is the blank one.
        redacted = self._guard(lambda: self._redact_value(value, counts), lambda: self._tokenizer.blank)
        return cast("T", redacted)

    def items(self, items: list[Any], counts: Counts | None = None) -> list[Any]:
        """Redact values that arrived in sequence, including a text that is spread over several of them."""
        redacted = self._guard(lambda: self._redact_items(items, counts), lambda: self._tokenizer.blank)
        return [redacted] * len(items) if isinstance(redacted, str) else redacted

    def messages(self, texts: Sequence[str], counts: Counts | None = None) -> list[str]:
        """Redact texts that arrived in sequence as the events of one stream."""
        redacted = self._guard(lambda: self._redact_messages(texts, counts), lambda: self._tokenizer.blank)
        return [redacted] * len(texts) if isinstance(redacted, str) else redacted

    def write_clean(self, value: Any) -> str:
        """The JSON text of a value that the codec writes unchanged and that needs no redaction; '' for any other.

        Only for small values known from before; `value` decides about all others.
        """
        try:
            return self._clean.write(value)
        except Exception:  # noqa: BLE001 -- the same happens again in `value`, where it is counted
            return ""

    def headers(self, pairs: Iterable[Sequence[str | bytes]], counts: Counts | None = None) -> list[list[str]]:
        """Redact HTTP headers; the value of a secret header is replaced as a whole."""
        listed = [[_header_text(name), _header_text(value)] for name, value in pairs]
        if self.is_clean(listed):
            return listed
        redacted: Any = self.value({"headers": listed}, counts)
        if isinstance(redacted, str):  # failed closed
            return [[name, self._tokenizer.blank] for name, _ in listed]
        return [list(pair) for pair in redacted["headers"]]

    def is_clean(self, headers: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> bool:
        """Whether a quick look shows that headers and texts need no redaction; False means unknown.

        All new texts are scanned together, which costs less than one by one.
        """
        return self._quick.is_clean(headers, texts)

    def hide(self, values: Iterable[str]) -> None:
        """Treat these values as secrets from now on; alone, a value of less than 6 characters is not found."""
        self._finder.adopt(value.encode("utf-8", "surrogatepass") for value in values if value)

    def adopt(self, other: RunRedactor) -> None:
        """Take over the values that another run of this process has learned to be secret."""
        self._finder.adopt(other._finder.known())

    def remember(self) -> Learned:
        """Return the knowledge gained so far, for `go_back`."""
        return Learned(self._finder.known(), self._finder.recall.tokens())

    def go_back(self, learned: Learned) -> None:
        """Return to earlier knowledge: the next run of the same process has not seen what came later."""
        self._finder.go_back(*learned)
        self._memo.clear()
        self._clean_structures.clear()
        self._clean = KnownClean(self._is_text_clean, TEXT_CHARS_MIN)
        self._quick = self._new_quick()

    def _new_quick(self) -> QuickLook:
        return QuickLook(self._finder, self._memo, self._clean_structures, self._is_text_clean)

    def find_edits(self, text: str, counts: Counts | None = None) -> Sequence[TextEdit]:
        """Make one pass over a text and return the edits it needs, in the text's offsets.

        Not guarded; for callers that place the edits themselves (streams).
        """
        if self._quick.is_clean((), (text,)):
            return ()
        document = self._read([text])
        return self._edits_of(document, counts).get(0, ())

    def chunks(self, chunks: Sequence[str], counts: Counts | None = None) -> list[str]:
        """Redact the chunks of one text as a whole; see `streams.redact_chunks`."""
        return redact_chunks(self, chunks, counts)

    def fail_closed(self, cause: BaseException, text: str) -> str:
        """Count a failure and return the token that replaces the text."""
        self._count_error(cause)
        try:
            return self._tokenizer.token_of(text)
        except Exception:  # noqa: BLE001 - failing closed must not fail
            return self._tokenizer.blank

    # ── Passes ──────────────────────────────────────────────────────────────────────────────────────
    def _redact_text(self, text: str, counts: Counts | None) -> str:
        if self._finder.recall:
            self._finder.recall.note_sent(text)
        for _ in range(PASSES_MAX):
            edits = self.find_edits(text, counts)
            if not edits:
                return text
            text = splice(text, edits)
        raise RecursionError("redaction does not settle")

    def _redact_decoded(self, text: str) -> tuple[str, str]:
        """Redact a decoded text; also return the first rule that matched in it, or ''."""
        counts: dict[str, int] = {}
        return self._redact_text(text, counts), next(iter(counts), "")

    def _redact_value(self, value: T, counts: Counts | None) -> Any:
        rest = self._clean.prune(value)
        if rest is None:
            return value
        if rest is not value and self._is_all_clean(rest):
            self._clean.remember(value)
            return value
        current: Any = value
        for n in range(PASSES_MAX):
            document = self._read(current)
            if not n:
                self._note_tokens(document)
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

    def _redact_items(self, items: list[Any], counts: Counts | None) -> list[Any]:
        for _ in range(PASSES_MAX):
            unseen: dict[str, None] = {}
            joined = self._open_groups(group_values(items), 1, unseen)
            if unseen:
                self._finder.scan(list(unseen))
            edits: dict[int, list[TextEdit]] = {}
            for (_, scalar), edit in self._edits_of_groups(joined, counts):
                edits.setdefault(scalar, []).append(edit)
            if not edits:
                return [self._redact_value(item, counts) for item in items]
            scalars = Scalars()
            flatten(items, scalars)
            replaced = {index: splice(str(scalars.items[index]), found) for index, found in edits.items()}
            items = graft(items, replaced, itertools.count())
        raise RecursionError("redaction does not settle")

    def _redact_messages(self, texts: Sequence[str], counts: Counts | None) -> list[str]:
        for _ in range(PASSES_MAX):
            unseen: dict[str, None] = {}
            parts = [Part(0, text, parse_json(text), True) for text in texts]
            joined = self._open_groups(group_pieces(parts), 1, unseen)
            if unseen:
                self._finder.scan(list(unseen))
            edits = self._edits_of_pieces(parts, joined, counts)
            if not any(edits):
                return [self._redact_text(text, counts) for text in texts]
            texts = [splice(part.text, _place_in_part(part, found)) for part, found in zip(parts, edits, strict=True)]
        raise RecursionError("redaction does not settle")

    # ── Known values and texts ──────────────────────────────────────────────────────────────────────
    def _note_tokens(self, document: _Document) -> None:
        if self._finder.recall:
            for item in document.scalars.items:
                self._finder.recall.note_sent(item)

    def _is_all_clean(self, value: object) -> bool:
        document = self._read(value)
        self._note_tokens(document)
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
            self._finder.scan(list(unseen))
        return document

    def _open(self, value: object, depth: int, unseen: dict[str, None]) -> _Document:
        scalars = Scalars()
        flatten(value, scalars)
        document = _Document(scalars)
        masked = set(scalars.masked)
        for index in scalars.told:
            self._finder.learn_masked(scalars.items[index])
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
        if parsed is not NOT_JSON and not is_streamed_array(parsed):
            return self._open(parsed, depth, unseen)
        parts = cut_events(text)
        if parts is None:
            return None
        return _Stream(parts, self._open_groups(group_pieces(parts), depth, unseen), depth)

    def _open_groups(
        self, groups: Iterable[Group], depth: int, unseen: dict[str, None]
    ) -> list[tuple[Group, _Document]]:
        return [(group, self._open([group.text], depth, unseen)) for group in groups]

    # ── (2) Edit: combine the findings ──────────────────────────────────────────────────────────────
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
                found = self._finder.scan_alone(item)
            if found:
                edits[index] = found
                _count(counts, found)
        return edits

    def _edits_of_stream(self, stream: _Stream, counts: Counts | None) -> list[TextEdit]:
        """Edits of secrets spread over several events; if there are none, edits within single events.

        Single events are not even scanned earlier: half of a password would be learned as a password.
        """
        edits = self._edits_of_pieces(stream.parts, stream.joined, counts)
        if not any(edits):
            unseen: dict[str, None] = {}
            trees = [[part.text] if part.tree is NOT_JSON else part.tree for part in stream.parts]
            documents = [self._open(tree, stream.depth, unseen) for tree in trees]
            if unseen:
                self._finder.scan(list(unseen))
            edits = [self._edits_of(document, counts) for document in documents]
        return [
            edit._replace(start=edit.start + part.start, end=edit.end + part.start)
            for part, found in zip(stream.parts, edits, strict=True)
            for edit in _place_in_part(part, found)
        ]

    def _edits_of_pieces(
        self, parts: Sequence[Part], joined: Sequence[tuple[Group, _Document]], counts: Counts | None
    ) -> list[dict[int, Sequence[TextEdit]]]:
        """Edits of secrets spread over several parts, as edits of the scalars of each part."""
        edits: list[dict[int, Sequence[TextEdit]]] = [{} for _ in parts]
        for (part, scalar), edit in self._edits_of_groups(joined, counts):
            edits[part][scalar] = [*edits[part].get(scalar, ()), edit]
        return edits

    def _edits_of_groups(
        self, joined: Sequence[tuple[Group, _Document]], counts: Counts | None
    ) -> Iterator[tuple[tuple[int, int], TextEdit]]:
        for group, document in joined:
            yield from group.distribute(self._edits_of(document, counts).get(0, ()))

    def _mask(self, item: str | int | float) -> TextEdit | None:
        """Replace a scalar that is secret by its key name with one token, unless it is empty or already a token."""
        text = item if isinstance(item, str) else repr(item)
        encoded = text.encode("utf-8", "surrogatepass")
        if not encoded or TOKEN.fullmatch(encoded):
            return None
        return TextEdit(0, len(text), self._tokenizer.token(encoded), "secret_key_name")

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


def _place_in_part(part: Part, edits: Mapping[int, Sequence[TextEdit]]) -> Sequence[TextEdit]:
    """Turn edits of an event's scalars into edits of its text."""
    if not edits or part.tree is NOT_JSON:
        return edits.get(0, ())
    scalars = Scalars()
    flatten(part.tree, scalars)
    return place_in_json(part.text, scalars, edits)


def _count(counts: Counts | None, edits: Iterable[TextEdit]) -> None:
    if counts is not None:
        for edit in edits:
            counts[edit.rule] = counts.get(edit.rule, 0) + 1


def _header_text(part: str | bytes) -> str:
    return part.decode("latin-1") if isinstance(part, bytes) else part
