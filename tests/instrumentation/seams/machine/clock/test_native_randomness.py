"""What native code draws for a program is recorded with a hash of what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.changed import load, record_agent, replay_agent

SIGNING: Final = """
import hashlib
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

import spanreplay

@spanreplay.boundary("tool", effect="irreversible")
def send(signature):
    return "sent"

def agent():
    key = ec.generate_private_key(ec.SECP256R1())
    send(key.sign(b"pay 10", ec.ECDSA(hashes.SHA256())).hex())
"""

HASHING: Final = """
import bcrypt

import spanreplay

@spanreplay.boundary("tool", effect="irreversible")
def store(password):
    return "stored"

def agent():
    store(bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode())
"""


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        (SIGNING, "pay 10", "pay 99"),
        (SIGNING, "hashes.SHA256()", "hashes.SHA512()"),
        (SIGNING, "ec.SECP256R1()", "ec.SECP384R1()"),
        (HASHING, "gensalt(4)", "gensalt(5)"),
        (HASHING, 'b"secret"', 'b"other"'),
    ],
    ids=["message", "algorithm", "key", "cost", "password"],
)
def test_n14_native_values_of_other_arguments_are_drawn_anew(
    tmp_path: Path, source: str, before: str, after: str
) -> None:
    """Unchanged, a program sends what it sent; with another message or key it does not send the recorded signature."""
    run_id = record_agent(load(source, tmp_path))
    same = replay_agent(run_id, load(source, tmp_path))
    assert same["verdict"] == "identical", same["divergences"]
    changed = replay_agent(run_id, load(source.replace(before, after), tmp_path))
    assert changed["divergences"][0]["kind"] == "changed_call", changed
