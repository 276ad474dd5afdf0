"""`spanreplay verify`: every change to a signed run is found, with the public key alone and without a server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from spanreplay.model.errors import SourceError
from spanreplay.recording.bundle import load_file
from spanreplay.recording.seal.signing import load_public_keys, sign
from spanreplay.recording.seal.tree import hash_leaf, hash_root
from spanreplay.recording.seal.verify import VERIFIED, verify
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.up_server import start_up

AGENT: Final = """
import sys
from spanreplay import boundary

@boundary("tool", effect="write")
def pay(amount):
    return {"paid": amount, "to": "Zoë"}

for amount in range(1, 6):
    print(pay(amount * int(sys.argv[1])))
"""
PRIVATE, PUBLIC = "signing.pem", "signing.pub.pem"
ADDED: Final = "00000000000000aa"
VERIFIES, UNSIGNED, TAMPERED = 0, 4, 5

Span = dict[str, Any]


def _make_keys(folder: Path, name: str = "") -> None:
    key = Ed25519PrivateKey.generate()
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / f"{name}{PRIVATE}").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / f"{name}{PUBLIC}").write_bytes(key.public_key().public_bytes(pem, spki))


def _run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "spanreplay"), *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@dataclass(frozen=True)
class Signed:
    """Two runs that were signed while being recorded, exported; `auditor` has the public key and nothing else."""

    workplace: Workplace
    auditor: Path
    runs: tuple[str, str]

    def lines(self, number: int) -> list[Any]:
        """A run as JSON lines: a header, then requests."""
        text = (self.workplace.path / f"{self.runs[number]}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def verify(self, lines: list[Any]) -> subprocess.CompletedProcess[str]:
        """Run `verify` on a changed run, as an auditor would."""
        file = _write(self.auditor / "changed.jsonl", lines)
        return _run(self.auditor, "verify", file.name, "--key", PUBLIC)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """An agent recorded twice with a signing key."""
    workplace = Workplace(tmp_path_factory.mktemp("agent"))
    auditor = tmp_path_factory.mktemp("auditor")
    _make_keys(workplace.path)
    agent = workplace.write("agent.py", AGENT)
    for factor in ("1", "100"):
        workplace.record(agent, factor, SPANREPLAY_SIGNING_KEY=PRIVATE)
    one, two = (recording.run_id for recording in workplace.recordings())
    for run in (one, two):
        for arguments in (("--jsonl", "-o", f"{run}.jsonl"), ()):
            assert _run(workplace.path, "export", run, *arguments).returncode == 0
        (auditor / f"{run}.replay").write_bytes((workplace.path / f"{run}.replay").read_bytes())
    (auditor / PUBLIC).write_bytes((workplace.path / PUBLIC).read_bytes())
    return Signed(workplace, auditor, (one, two))


def _spans(lines: list[Any]) -> Iterator[Span]:
    for line in lines[1:]:
        for resource in line["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]


def _write(file: Path, lines: list[Any]) -> Path:
    """Write lines to a file, with the right span count in the header: an attacker would correct it too."""
    lines = [{**lines[0], "spans": len(list(_spans(lines)))}, *lines[1:]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def _get(span: Span, name: str) -> Any:
    found = [each["value"] for each in span["attributes"] if each["key"] == f"spanreplay.{name}"]
    return next(iter(found[0].values())) if found else None


def _put(span: Span, name: str, value: str) -> None:
    for each in span["attributes"]:
        if each["key"] == f"spanreplay.{name}":
            each["value"] = {next(iter(each["value"])): value}


def _calls(lines: list[Any]) -> list[Span]:
    """The calls that have ended; each one's start is a separate span."""
    return [span for span in _spans(lines) if _get(span, "kind") == "tool" and _get(span, "outcome") != "open"]


def _root(lines: list[Any]) -> Span:
    return [span for span in _spans(lines) if _get(span, "manifest")][-1]


def _remove(lines: list[Any], is_wanted: Callable[[Span], bool]) -> None:
    for line in lines[1:]:
        for resource in line["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                scope["spans"] = [span for span in scope["spans"] if not is_wanted(span)]


def _flip(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    call = _calls(lines)[2]
    _put(call, "response", _get(call, "response").replace("3", "9"))
    return lines


def _flip_root(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    _put(_root(lines), "env", _get(_root(lines), "env").replace('"1"', '"2"'))
    return lines


def _delete(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    second = _get(_calls(lines)[1], "seq")
    _remove(lines, lambda span: _get(span, "seq") == second)
    return lines


def _reorder(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    one, two = _calls(lines)[:2]
    for name in ("seq", "end_seq", "index"):
        first, second = _get(one, name), _get(two, name)
        _put(one, name, second)
        _put(two, name, first)
    return lines


def _truncate(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    last = _get(_calls(lines)[-1], "seq")
    _remove(lines, lambda span: _get(span, "seq") == last)
    return lines


def _insert(signed: Signed) -> list[Any]:
    lines = signed.lines(0)
    added = json.loads(json.dumps(_calls(lines)[-1]))
    added["spanId"] = ADDED
    for name in ("seq", "end_seq"):
        _put(added, name, str(int(_get(added, name)) + 100))
    lines[-1]["resourceSpans"][0]["scopeSpans"][0]["spans"].append(added)
    return lines


def _insert_open(signed: Signed) -> list[Any]:
    """A call that has not ended has no leaf hash."""
    lines = _insert(signed)
    (added,) = (span for span in _spans(lines) if span["spanId"] == ADDED)
    _put(added, "outcome", "open")
    return lines


def _swap(signed: Signed) -> list[Any]:
    """Replace a call by one of the other run."""
    lines, others = signed.lines(0), signed.lines(1)
    call, other = _calls(lines)[2], _calls(others)[2]
    for name in ("request", "response", "key"):
        _put(call, name, _get(other, name))
    return lines


def _swap_runs(signed: Signed) -> list[Any]:
    """Present the other run under the id of this one."""
    text = json.dumps(signed.lines(1)).replace(signed.runs[1], signed.runs[0])
    lines: list[Any] = json.loads(text)
    return lines


def _rewrite(signed: Signed) -> list[Any]:
    """Change an answer and recompute the root, as whoever runs the store could."""
    lines = _flip(signed)
    file = _write(signed.auditor / "rewritten.jsonl", lines)
    manifest = json.loads(_get(_root(lines), "manifest"))
    manifest["root"] = hash_root(hash_leaf(call) for call in load_file(file).calls)
    _put(_root(lines), "manifest", json.dumps(manifest))
    return lines


def _forge(signed: Signed) -> list[Any]:
    """A whole run that somebody else has made and signed."""
    folder = signed.workplace.path
    _make_keys(folder, "other-")
    lines = _rewrite(signed)
    file = _write(signed.auditor / "forged.jsonl", lines)
    manifest = json.loads(_get(_root(lines), "manifest"))
    manifest["signature"] = sign(load_file(file).root, str(folder / f"other-{PRIVATE}"))
    _put(_root(lines), "manifest", json.dumps(manifest))
    return lines


def _forge_name(signed: Signed) -> list[Any]:
    """The same, labelled with the real key's name."""
    lines = _forge(signed)
    manifest = json.loads(_get(_root(lines), "manifest"))
    manifest["signature"]["key"] = json.loads(_get(_root(signed.lines(0)), "manifest"))["signature"]["key"]
    _put(_root(lines), "manifest", json.dumps(manifest))
    return lines


ATTACKS: Final = {
    "flip": (_flip, "the calls hash to"),
    "flip root": (_flip_root, "is not over this run"),
    "delete": (_delete, "4 calls are here, the manifest counts 5"),
    "reorder": (_reorder, "the calls hash to"),
    "truncate": (_truncate, "4 calls are here, the manifest counts 5"),
    "insert": (_insert, "6 calls are here, the manifest counts 5"),
    "insert open": (_insert_open, "6 calls are here, the manifest counts 5"),
    "swap": (_swap, "the calls hash to"),
    "swap runs": (_swap_runs, "the calls hash to"),
    "rewrite": (_rewrite, "is not over this run"),
    "forge": (_forge, "it is signed with another key"),
    "forge name": (_forge_name, "is not over this run"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_r5_s47_each_attack_is_found_with_the_public_key_alone(attack: str, signed: Signed) -> None:
    """Flip, delete, reorder, truncate, insert, swap and forging a whole run are found offline, with the reason."""
    change, reason = ATTACKS[attack]
    found = signed.verify(change(signed))
    assert found.returncode == TAMPERED, found.stdout + found.stderr
    assert reason in found.stdout


def test_r5_s47_what_was_recorded_is_verified(signed: Signed) -> None:
    """An untouched run verifies as file and as lines, in any order and twice; the private key isn't there."""
    files = [f"{run}.replay" for run in signed.runs]
    found = _run(signed.auditor, "verify", *files, "--key", PUBLIC)
    assert found.returncode == VERIFIES, found.stdout
    assert found.stdout.count("verified  ") == 2
    header, *requests = signed.lines(0)
    assert signed.verify([header, *reversed(requests), *requests]).returncode == VERIFIES
    told = _run(signed.auditor, "verify", files[0], "--key", PUBLIC, "--json")
    (told_run,) = json.loads(told.stdout)["runs"]
    assert (told_run["status"], told_run["calls"], told_run["reason"]) == ("verified", 5, "")


def test_r5_a_flipped_byte_of_a_file_is_found(signed: Signed) -> None:
    """It is found anywhere in a .replay file, unless it changes nothing that is read: then the run is the same."""
    file = signed.auditor / f"{signed.runs[0]}.replay"
    keys = load_public_keys([str(signed.auditor / PUBLIC)])
    content, whole = file.read_bytes(), load_file(file)
    changed = signed.auditor / "flipped.replay"
    for at in range(0, len(content), 7):
        changed.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            recording = load_file(changed)
        except SourceError:
            continue
        assert verify(recording, keys).status != VERIFIED or recording == whole, at


def test_r5_a_file_holds_the_run_that_it_is_named_by(signed: Signed) -> None:
    """If two files are exchanged, each is a whole signed run, but not the requested one."""
    content = (signed.auditor / f"{signed.runs[1]}.replay").read_bytes()
    folder = signed.auditor / "exchanged"
    folder.mkdir()
    (folder / f"{signed.runs[0]}.replay").write_bytes(content)
    found = _run(folder, "verify", f"{signed.runs[0]}.replay", "--key", f"../{PUBLIC}")
    assert (found.returncode, signed.runs[1] in found.stdout) == (TAMPERED, True)


def test_r5_a_run_without_signature_is_not_verified(signed: Signed) -> None:
    """No key when recorded, an unusable key, no key to verify with, no end: each is stated, with status 4."""
    workplace = Workplace(signed.workplace.path / "unsigned")
    workplace.path.mkdir()
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, "1")
    curve = ec.generate_private_key(ec.SECP256R1())
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    curve_pem = curve.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    (workplace.path / "curve.pem").write_bytes(curve_pem)
    (workplace.path / "noise.pem").write_bytes(os.urandom(64))
    expected = {"": "it was recorded without a signing key"}
    reasons = {
        "curve.pem": "curve.pem is not a key of Ed25519",
        "noise.pem": "noise.pem is not a private key in PEM without a password",
        "missing.pem": "missing.pem cannot be read: No such file or directory",
    }
    for name, reason in reasons.items():
        recorded = workplace.record(agent, "1", SPANREPLAY_SIGNING_KEY=name)
        assert reason in recorded.stderr
        expected[name] = f"it could not be signed: {reason}"
    public = str(signed.auditor / PUBLIC)
    for recording, reason in zip(workplace.recordings(), expected.values(), strict=True):
        found = _run(workplace.path, "verify", recording.run_id, "--key", public)
        assert (found.returncode, reason in found.stdout) == (UNSIGNED, True), found.stdout
    without = _run(signed.auditor, "verify", f"{signed.runs[0]}.replay")
    assert (without.returncode, "--key FILE" in without.stdout) == (UNSIGNED, True)
    lines = signed.lines(0)
    _remove(lines, lambda span: bool(_get(span, "manifest")))
    cut = signed.verify(lines)
    assert (cut.returncode, "its end was never recorded" in cut.stdout) == (UNSIGNED, True)
    wrong = _run(signed.workplace.path, "verify", signed.runs[0], "--key", PRIVATE)
    assert (wrong.returncode, "is a private key" in wrong.stderr) == (1, True)


def test_n15_a_run_is_verified_out_of_the_store(signed: Signed, tmp_path: Path) -> None:
    """A run sent over OTLP to chDB and fetched from the replay service is the run that was signed."""
    with start_up(tmp_path) as server:
        shipped = _run(signed.workplace.path, "ship", "--endpoint", server.otlp_endpoint)
        assert shipped.returncode == 0, shipped.stderr
        for run in signed.runs:
            found = _run(signed.auditor, "verify", run, "--key", PUBLIC, SPANREPLAY_ENDPOINT=server.endpoint)
            assert found.returncode == VERIFIES, found.stdout + found.stderr


def test_r5_doctor_says_whether_runs_are_signed(signed: Signed) -> None:
    """It gives the name of the key, or why it cannot be used."""
    folder = signed.workplace.path
    expected = {PRIVATE: "runs are signed with key ", "agent.py": "runs are recorded and not signed: agent.py"}
    for file, line in expected.items():
        told = _run(folder, "doctor", "--", str(BIN / "python"), "agent.py", "1", SPANREPLAY_SIGNING_KEY=file)
        assert line in " ".join(told.stdout.split()), told.stdout
