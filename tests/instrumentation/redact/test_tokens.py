"""Tokens, and the file that holds the key of tokens."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.errors import ConfigError
from spanreplay.redact import Redactor, load_or_create_key
from spanreplay.redact.tokens import TOKEN, Tokenizer, key_id_of


@given(st.binary(max_size=200))
def test_token_has_only_letters_and_names_its_key(value: bytes) -> None:
    """A token is rdx-, the key's letter and 16 consonants, the same each time."""
    token = Tokenizer(b"k" * 32, "k").token(value)
    assert re.fullmatch(r"rdx-k[bcdfghjklmnpqrstvwxz]{16}", token)
    assert TOKEN.fullmatch(token.encode())
    assert token == Tokenizer(b"k" * 32, "k").token(value)
    assert token != Tokenizer(b"x" * 32, "k").token(value)


def test_tokens_stay_what_they_are() -> None:
    """The token of a value under a key never changes, because recordings are matched for years."""
    assert Tokenizer(b"k" * 32, "k").token(b"hunter2secret") == "rdx-kqkwlswwcsnnmktxf"


def test_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """The first use makes the key with mode 0600, later ones read it."""
    path = tmp_path / "new" / "redact.key"
    key, key_id = load_or_create_key(path)
    assert len(key) == 32
    assert key_id == key_id_of(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_or_create_key(path) == (key, key_id)
    Redactor(key, key_id)


def test_key_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    """A mounted read-only key is used as it is."""
    path = tmp_path / "redact.key"
    path.write_text("ab" * 32 + "\n")
    path.chmod(0o400)
    assert load_or_create_key(path)[0] == b"\xab" * 32


def test_file_left_empty_by_a_crash_is_filled(tmp_path: Path) -> None:
    """If a creator died before writing, its empty file does not block the next one."""
    path = tmp_path / "redact.key"
    path.touch()
    assert len(load_or_create_key(path)[0]) == 32


def test_processes_that_race_get_the_same_key(tmp_path: Path) -> None:
    """Eight processes that start at once agree on one key."""
    path = tmp_path / "redact.key"
    code = (
        "import sys; from pathlib import Path; from spanreplay.redact import load_or_create_key;"
        "sys.stdin.readline(); print(load_or_create_key(Path(sys.argv[1]))[0].hex())"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    keys = {racer.communicate(timeout=600)[0].strip() for racer in racers}
    assert len(keys) == 1
    assert len(keys.pop()) == 64


@pytest.mark.parametrize("content", ["nonsense", "ab" * 31, "ab" * 33, "zz" * 32, "\xff"])
def test_damaged_key_file_is_named(tmp_path: Path, content: str) -> None:
    """A file that is not a key gives an error with its name and a remedy, and is not touched."""
    path = tmp_path / "redact.key"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"redact\.key.*64 hexadecimal") as caught:
        load_or_create_key(path)
    assert caught.value.hint
    assert content not in str(caught.value)
    assert path.read_text(encoding="utf-8") == content


def test_key_in_an_impossible_place_is_an_error(tmp_path: Path) -> None:
    """A path below a file cannot be created, and the error says so."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot use the redaction key") as caught:
        load_or_create_key(tmp_path / "file" / "redact.key")
    assert isinstance(caught.value.__cause__, OSError)
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - names only


@pytest.mark.parametrize(("key", "key_id"), [(b"short", "k"), (b"k" * 32, "a"), (b"k" * 32, ""), (b"k" * 32, "kk")])
def test_unusable_key_is_refused(key: bytes, key_id: str) -> None:
    """A key that is too short, or an id that no token can contain, is an error at once."""
    with pytest.raises(ConfigError):
        Redactor(key, key_id)
