"""Exceptions come back unchanged: class, args, attributes, cause, notes."""

from __future__ import annotations

import json
import sys
import traceback
from asyncio import CancelledError
from types import ModuleType
from typing import Any, ClassVar

import pytest
import requests.exceptions
from langchain_core.tools import ToolException

from spanreplay.codec import Unserializable, decode, decode_exception, encode, encode_exception


class PaymentError(Exception):
    """An exception whose constructor doesn't take its args."""

    made = 0

    def __init__(self, code: int, *, retry: bool) -> None:
        super().__init__(f"payment failed with {code}")
        self.code = code
        self.retry = retry
        PaymentError.made += 1


class QuotaError(OSError):
    """An OSError with its own constructor."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"over {limit}")
        self.limit = limit


class Cancelled(BaseException):
    """A BaseException that is not an Exception."""


def _back(exc: BaseException) -> BaseException:
    return decode_exception(json.loads(json.dumps(encode_exception(exc))))


BUILTIN = [
    ValueError("bad", 1),
    KeyError("k"),
    FileNotFoundError(2, "no such file", "a.txt"),
    OSError(18, "cross-device", "a", None, "b"),
    OSError("just text"),
    TimeoutError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    UnicodeEncodeError("ascii", "é", 0, 1, "ordinal"),
    SystemExit(3),
    StopIteration("value"),
    ImportError("no", name="n", path="p"),
    AttributeError("no", name="n", obj="o"),
    SyntaxError("bad", ("f.py", 1, 2, "text")),
    KeyboardInterrupt(),
    json.JSONDecodeError("expected", "doc", 1),
    requests.exceptions.ConnectionError("refused"),
    ToolException("tool said no"),
]
C_ATTRIBUTES = [
    *("errno", "strerror", "filename", "filename2", "code", "value", "name", "path", "obj"),
    *("msg", "lineno", "offset", "text", "start", "end", "object", "pos", "doc"),
]


@pytest.mark.parametrize("exc", BUILTIN, ids=lambda exc: type(exc).__name__)
def test_s61_exception_round_trip(exc: BaseException) -> None:
    """Builtin and library exceptions keep class, args, text and every attribute."""
    back = _back(exc)
    assert type(back) is type(exc)
    assert back.args == exc.args
    assert str(back) == str(exc)
    for name in C_ATTRIBUTES:
        assert getattr(back, name, None) == getattr(exc, name, None)


def test_s61_exception_keeps_attributes_without_running_init() -> None:
    """A constructor that does not fit the args is not called; the attributes that it set are restored."""
    original = PaymentError(402, retry=True)
    before = PaymentError.made
    back = _back(original)
    assert PaymentError.made == before
    assert isinstance(back, PaymentError)
    assert (back.code, back.retry, str(back)) == (402, True, str(original))
    quota = _back(QuotaError(5))
    assert isinstance(quota, QuotaError)
    assert (quota.limit, str(quota)) == (5, "over 5")


def test_s61_exception_keeps_cause_notes_and_base() -> None:
    """`raise … from`, notes and classes outside Exception survive."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise Cancelled("outer") from inner
    except Cancelled as exc:
        exc.__notes__ = ["while paying"]
        back = _back(exc)
    assert type(back) is Cancelled
    assert repr(back.__cause__) == "KeyError('inner')"
    assert back.__suppress_context__
    assert back.__notes__ == ["while paying"]
    assert back.__traceback__ is None


def test_exception_names_the_attributes_it_dropped() -> None:
    """An attribute without a codec is left out by name; the exception itself survives."""
    exc = ValueError("x")
    exc.response = object()  # type: ignore[attr-defined]  # as SDK errors have
    exc.status = 429  # type: ignore[attr-defined]  # as SDK errors have
    encoded = encode_exception(exc)
    assert encoded["dropped"] == ["response"]
    assert encoded["state"] == {"status": 429}


def test_exception_args_without_codec_are_refused() -> None:
    """An argument of an exception is never replaced by its repr."""
    with pytest.raises(Unserializable, match=r"unserializable at \$\.args\[1\]: builtins\.object"):
        encode_exception(ValueError("x", object()))


def test_exception_of_a_local_class_is_refused() -> None:
    """A class that can't be imported can't be restored, so the exception is refused."""

    class LocalError(Exception):
        pass

    with pytest.raises(Unserializable, match=r"not an importable class"):
        encode_exception(LocalError())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are new in 3.11")
def test_s61_exception_group_round_trip() -> None:
    """A group keeps its members."""
    group = ExceptionGroup("two", [ValueError(1), PaymentError(402, retry=False)])  # noqa: F821  new in 3.11
    back: Any = _back(group)
    assert type(back) is type(group)
    assert [type(each) for each in back.exceptions] == [ValueError, PaymentError]
    assert str(back) == str(group)


def test_exception_in_the_args_of_its_cause_is_kept() -> None:
    """A task that is cancelled with an exception, and raises it, leaves out the cancellation."""
    exc = ValueError("x")
    exc.__cause__ = CancelledError(exc)
    encoded = encode_exception(exc)
    assert encoded["dropped"] == ["__cause__"]
    assert repr(decode_exception(encoded)) == repr(exc)


def test_exception_cycle_is_refused() -> None:
    """An exception that is its own cause is refused, not followed."""
    exc = ValueError("x")
    other = KeyError("y")
    exc.__cause__, other.__cause__ = other, exc
    with pytest.raises(Unserializable, match=r"cycle through builtins\.ValueError"):
        encode_exception(exc)


@pytest.mark.parametrize("encoded", [None, {}, {"$type": "tuple", "items": []}, "text"], ids=repr)
def test_decode_exception_takes_nothing_else(encoded: Any) -> None:
    """Anything that is not an encoded exception is refused."""
    with pytest.raises(Unserializable, match=r"something else where an exception belongs"):
        decode_exception(encoded)


def test_exception_as_a_value_is_not_raised() -> None:
    """A tool may return an exception; it comes back as a value."""
    assert repr(decode(encode({"error": ValueError("x")}))["error"]) == "ValueError('x')"


LAZY = """
class Unavailable(LookupError):
    pass

class Exhausted(Unavailable):
    def __init__(self, text, after):
        super().__init__(text)
        self.after = after

class Spoken(Unavailable):
    def __str__(self):
        return "spoken"
"""


def _make_of_lazy(monkeypatch: pytest.MonkeyPatch, source: str) -> dict[str, Any]:
    """Encode an exception of a module that is gone afterwards, as in a replay that runs no tool."""
    module = ModuleType("lazy_library")
    exec(LAZY, vars(module))  # noqa: S102 -- the test's own text
    monkeypatch.setitem(sys.modules, "lazy_library", module)
    encoded: dict[str, Any] = json.loads(json.dumps(encode_exception(eval(source, vars(module)))))  # noqa: S307 -- as above
    monkeypatch.delitem(sys.modules, "lazy_library")
    return encoded


def test_an_exception_of_a_module_that_nothing_has_loaded_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tool has loaded it, so nobody can name its class; what is known of its bases catches it."""
    decoded: Any = decode_exception(_make_of_lazy(monkeypatch, "Exhausted('no more', after=3)"))
    assert traceback.format_exception_only(decoded) == ["lazy_library.Exhausted: no more\n"]
    assert (type(decoded).__mro__[1], decoded.args, decoded.after) == (LookupError, ("no more",), 3)
    assert "lazy_library" not in sys.modules


def test_an_exception_that_shows_itself_has_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is made by code that nothing has loaded."""
    with pytest.raises(Unserializable, match="nothing here has imported lazy_library"):
        decode_exception(_make_of_lazy(monkeypatch, "Spoken('x')"))


@pytest.mark.parametrize(
    ("path", "bases"),
    [("os:system", ["builtins:Exception"]), ("gone:X", ["builtins:int", "gone:Y"]), ("a b:c", ["builtins:Exception"])],
)
def test_r8_a_stand_in_is_below_exceptions_alone(path: str, bases: list[str]) -> None:
    """A recording makes no class of another kind, and replaces none that is loaded."""
    with pytest.raises(Unserializable):
        decode_exception({"$type": "exception", "class": path, "args": [], "bases": bases})


class _Listens(Exception):
    """Runs code when a class is made below it."""

    made: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        _Listens.made.append(cls)


class _Meta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
        made = super().__new__(cls, name, bases, space)
        _Listens.made.append(made)
        return made


class _Counted(Exception, metaclass=_Meta):
    """Its metaclass runs code when a class is made below it."""


@pytest.mark.parametrize("base", [_Listens, _Counted])
def test_r8_a_stand_in_runs_no_code_of_the_class_that_it_is_below(base: type) -> None:
    """Such a class is passed over; the next one takes its place."""
    _Listens.made.clear()
    bases = [f"{base.__module__}:{base.__qualname__}", "builtins:Exception"]
    decoded = decode_exception({"$type": "exception", "class": "gone:X", "args": ["x"], "bases": bases})
    assert (type(decoded).__mro__[1], decoded.args) == (Exception, ("x",))
    assert _Listens.made == []


@pytest.mark.parametrize("bases", [3, None, "builtins:Exception", [3], [["builtins:Exception"]]])
def test_r8_bases_of_another_form_are_refused(bases: Any) -> None:
    """A recording is data from a stranger."""
    with pytest.raises(Unserializable):
        decode_exception({"$type": "exception", "class": "gone:X", "args": [], "bases": bases})
