"""Personal addresses and numbers, from tests and tables of packages that validate them; read as text, never run."""

from __future__ import annotations

import ast
import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Personal", "read_personal"]


class Personal(NamedTuple):
    """Personal data and its part that must be removed: for an e-mail address, everything up to the @."""

    kind: str
    written: str
    secret: str


_ADDRESS: Final = re.compile(r"<([A-Za-z0-9._%+-]{3,}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,24})>")
_SSN: Final = re.compile(r"(?<![\w.-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![\w.-])")
_IBAN: Final = re.compile(r"^\.\.\. ([A-Z]{2}[0-9]{2}[A-Z0-9 ]{11,40})$", re.MULTILINE)
_REGION: Final = re.compile(r"country_code=([0-9]{1,3}),")
_EXAMPLE: Final = re.compile(r"(?:fixed_line|mobile)=PhoneNumberDesc\(.*?example_number='([0-9]+)'")


def read_personal(folder: Path) -> list[Personal]:
    """Return all samples of the unpacked packages, without duplicates."""
    found: dict[str, Personal] = {}
    for sample in (
        *_read_emails(folder),
        *_read_cards(folder),
        *_read_ibans(folder),
        *_read_ssns(folder),
        *_read_phones(folder),
        *_read_addresses(folder),
    ):
        found.setdefault(sample.written, sample)
    return list(found.values())


def _read_texts(folder: Path, pattern: str) -> Iterator[str]:
    for source in sorted(folder.glob(pattern)):
        yield source.read_text(encoding="utf-8", errors="replace")


def _read_emails(folder: Path) -> Iterator[Personal]:
    """Yield the signatures of a framework's translators."""
    for text in _read_texts(folder, "django-*/django/contrib/a*/locale/*/LC_MESSAGES/*.po"):
        for address in _ADDRESS.findall(text):
            yield Personal("email", address, address[: address.index("@") + 1])


def _read_cards(folder: Path) -> Iterator[Personal]:
    for text in _read_texts(folder, "validators-*/tests/test_card.py"):
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List):
                continue
            for item in node.value.elts:
                if isinstance(item, ast.Constant) and isinstance(item.value, str) and _fits_luhn(item.value):
                    number = item.value
                    yield Personal("card", number, number)
                    grouped = " ".join(number[at : at + 4] for at in range(0, len(number), 4))
                    if len(number) == 16:
                        yield Personal("card", grouped, grouped)


def _fits_luhn(number: str) -> bool:
    digits = [int(c) for c in number if c.isdigit()]
    total = sum(digits[-1::-2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return 13 <= len(digits) == len(number) and total % 10 == 0


def _read_ibans(folder: Path) -> Iterator[Personal]:
    for text in _read_texts(folder, "python_stdnum-*/tests/test_iban.doctest"):
        valid = text.partition("These should all be valid")[2].partition("'''")[2].partition("'''")[0]
        for number in _IBAN.findall(valid):
            plain = number.replace(" ", "")
            if int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1:
                yield Personal("iban", number.strip(), number.strip())


def _read_ssns(folder: Path) -> Iterator[Personal]:
    for package in ("datafog-*", "ai_guardian-*", "argus_redact-*", "presidio_analyzer-*", "python_stdnum-*/stdnum/us"):
        for text in _read_texts(folder, f"{package}/**/*.py"):
            for number in _SSN.findall(text):
                yield Personal("ssn", number, number)


def _read_phones(folder: Path) -> Iterator[Personal]:
    """Yield the numbering plan's example for each country, as dialled and in two groups."""
    for text in _read_texts(folder, "phonenumbers-*/phonenumbers/data/region_??.py"):
        code = _REGION.search(text)
        for number in _EXAMPLE.findall(text) if code is not None else ():
            assert code is not None
            if len(code[1] + number) >= 8:
                yield Personal("phone", f"+{code[1]}{number}", number)
                grouped = f"+{code[1]} {number[:3]} {number[3:]}"
                yield Personal("phone", grouped, number[3:])


def _read_addresses(folder: Path) -> Iterator[Personal]:
    for text in _read_texts(folder, "validators-*/tests/test_ip_address.py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_public(node.value):
                yield Personal("ip address", node.value, node.value)


def _is_public(written: str) -> bool:
    try:
        return ipaddress.ip_address(written).is_global
    except ValueError:
        return False
