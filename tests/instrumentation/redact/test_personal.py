"""Personal identifiers are found by their structure, and other numbers stay."""

from __future__ import annotations

import pytest

from spanreplay.redact import RunRedactor

_FOUND = {
    "email": "ada.lovelace+x@mail.example.co.uk a_b@example.com O'Neil@example.org x1@xn--bcher-kva.example",
    "card": "4111111111111111 5500000000000004 378282246310005 6011000990139424 3530111333300000 30569309025904"
    " 4111-1111-1111-1111",
    "iban": "DE89370400440532013000 GB29NWBK60161331926819 FR1420041010050500013M02606 NL91ABNA0417164300"
    " CH9300762011623852957",
    "ssn": "123-45-6789 856-45-6780",
    "phone": "+12125550123 +1-212-555-0123 +44-20-7946-0958 212-555-0123 212.555.0123 +4930901820 1-212-555-0123",
    "ip_address": "8.8.8.8 93.184.216.34 203.5.112.9 2606:4700:4700::1111 2a02:26f0:3500:880:1111:2222:3333:4444",
}
_SPACED = (
    "4111 1111 1111 1111",
    "3782 822463 10005",
    "DE89 3704 0044 0532 0130 00",
    "(212) 555-0123",
    "+1 (212) 555-0123 x12",
    "+44 20 7946 0958",
    "01 23 45 67 89",
)
_CASES = [(kind, value) for kind, values in _FOUND.items() for value in values.split()]


@pytest.mark.parametrize(("kind", "value"), _CASES, ids=[value for _, value in _CASES])
@pytest.mark.parametrize(
    "frame",
    [
        "{}",
        "call {}.",
        "a,{},b",
        '"{}"',
        "({})",
        "who: {}\n",
        "{}; {}",
        "a\\n{}\\nb",
        "<b>{}</b>",
        "('{}',)",
        "it\\'s \\'{}\\'",
    ],
)
def test_r1_what_identifies_a_person_goes(run: RunRedactor, kind: str, value: str, frame: str) -> None:
    """Of an e-mail address the name is redacted, of anything else the whole; nothing around it changes."""
    secret = value.split("@")[0]
    counts: dict[str, int] = {}
    redacted = run.text(frame.replace("{}", value), counts)
    assert secret not in redacted
    assert set(counts) == {kind}
    assert run.text(redacted) == redacted
    before, after = frame.split("{}", 1)[0], frame.rsplit("{}", 1)[1]
    assert redacted.startswith(before)
    assert redacted.endswith(after)


@pytest.mark.parametrize("value", _SPACED)
def test_r1_groups_of_digits_are_one_number(run: RunRedactor, value: str) -> None:
    """Spaces and brackets inside a number belong to it."""
    assert not any(c.isdigit() for c in run.text(f"it is {value}, she said"))


@pytest.mark.parametrize(
    "text",
    [
        "4111111111111112",
        "4111 1111 1111 1112",
        "1763715840123456",
        "order 4111111111111111234567",
        "0.4111111111111111",
        "DE88370400440532013000",
        "US0378331005",
        "ZZ89370400440532013000",
        "000-12-3456",
        "900-12-3456",
        "1123-45-6789",
        "123-45-67890",
        "icon@2x.png",
        "git@github.com:a/b.git",
        "https://user@example.com/x",
        "@app.route('/')",
        "a@b",
        "10.0.0.1",
        "127.0.0.1:8000",
        "192.168.1.20",
        "v1.2.3.4",
        "version 8.8.4.4",
        "Chrome/120.1.2.3",
        "p==1.2.3.4",
        "1.0.0.0",
        "256.8.8.8",
        "8.8.8.8.8",
        "::1",
        "fe80::1",
        "std::cout",
        "12:34:56",
        "2026-11-21 09:04:00",
        "+1,234,567.89",
        "a+1234567890b",
        "$190,000",
        "1234567890",
        "555-0123",
        "2026.11.21",
        "x = 3.14159 * 2.71828",
        "00:1b:44:11:3a:b7",
        "e3b0c44298fc1c149afbf4c8996fb924",
        "0192f0c1-d2e3-74a5-b6c7-d8e9f0a1b2c3",
    ],
)
def test_r2_numbers_of_other_kinds_stay(run: RunRedactor, text: str) -> None:
    """Wrong check digits, amounts, dates, versions, private addresses, times and ids are not personal."""
    for frame in ("{}", "see {} there", "({})"):
        assert run.text(frame.format(text)) == frame.format(text)
