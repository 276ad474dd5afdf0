"""Made-up secrets in their real formats, and texts that redaction must never change.

Keys are concatenated here, so that no file of the project contains a complete one.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

_MIXED: Final = "aB3dE5gH7jK9mN2pQ4rS6tU8vW1xY0zC"


def _body(length: int) -> str:
    return (_MIXED * (length // len(_MIXED) + 1))[:length]


class Sample(NamedTuple):
    """A text and the part of it that must not survive."""

    rule: str
    text: str
    secret: str


def _bare(rule: str, secret: str) -> Sample:
    return Sample(rule, secret, secret)


def _around(rule: str, before: str, secret: str, after: str = "") -> Sample:
    return Sample(rule, before + secret + after, secret)


_PEM: Final = "\n".join(
    ["-----BEGIN " + "RSA PRIVATE KEY-----", *[_body(64)] * 6, _body(20) + "==", "-----END RSA PRIVATE KEY-----"]
)
_JWT: Final = ".".join(
    base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
    for part in ('{"alg":"HS256","typ":"JWT"}', '{"sub":"1234567890","name":"Ada"}', "signature-bytes-here-32-long")
)

SECRETS: Final = (
    _bare("private_key", _PEM),
    _bare("jwt", _JWT),
    _bare("aws_access_key_id", "AKIA" + "IOSFODNN7EXAMPLE"),
    _around("secret_assignment", "aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"),
    _bare("gcp_api_key", "AIza" + _body(35)),
    _bare("gcp_oauth_token", "ya29." + _body(60)),
    _bare("anthropic_key", "sk-ant-" + "api03-" + _body(93) + "AA"),
    _bare("openai_key", "sk-" + _body(20) + "T3Blbk" + "FJ" + _body(20)),
    _bare("openai_key", "sk-proj-" + _body(74) + "T3Blbk" + "FJ" + _body(74)),
    _bare("openai_key", "sk-svcacct-" + _body(40)),
    _bare("openai_key", "sk-or-v1-" + "0123456789abcdef" * 4),
    _bare("openai_key", "sk-" + "abcdefghij" * 2),
    _bare("openai_key", "sk-" + "test-key-for-unit-tests-only"),
    _bare("github_token", "ghp_" + _body(36)),
    _bare("github_token", "ghs_" + _body(36)),
    _bare("github_pat", "github_pat_" + _body(22) + "_" + _body(59)),
    _bare("gitlab_token", "glpat-" + _body(20)),
    _bare("slack_token", "xoxb-" + "123456789012-123456789012-" + _body(24)),
    _around("slack_webhook", "https://hooks.slack.com/", "services/T00000000/B00000000/" + _body(24)),
    _bare("stripe_key", "sk_live_" + _body(24)),
    _bare("stripe_key", "rk_test_" + _body(24)),
    _bare("stripe_webhook_secret", "whsec_" + _body(32)),
    _bare("huggingface_token", "hf_" + _body(34)),
    _bare("npm_token", "npm_" + _body(36)),
    _bare("pypi_token", "pypi-" + "AgEI" + _body(60)),
    _bare("sendgrid_key", "SG." + _body(22) + "." + _body(43)),
    _around("url_password", "postgres://app:", "Sup3r.S3cret-pw", "@db.internal:5432/main"),
    _around("url_password", "redis://:", "Sup3rS3cretpw", "@cache/0"),
    _around("bearer", "Authorization: Bearer ", _body(40)),
    _around("bearer", "curl -H 'authorization: bearer ", "tok3n-abc.def_ghi", "' https://x.test"),
    _around("basic", "Authorization: Basic ", base64.b64encode(b"aladdin:opensesame").decode()),
    _around("secret_assignment", "password=", "hunter2secret"),
    _around("secret_assignment", "export PGPASSWORD='", "hunter2secret", "'"),
    _around("secret_assignment", 'DB_PASSWORD: "', "correct horse battery", '"'),
    _around("secret_assignment", "https://x.test/?api_key=", "Zm9vYmFyMTIz", "&page=2"),
    _around("secret_assignment", "client_secret => ", "Zm9vYmFyMTIz", ";"),
    _around("secret_assignment", "tool --api-key ", "Zm9vYmFyMTIz", " --verbose"),
    _around("secret_assignment", '{\\"access_token\\": \\"', "Zm9vYmFyMTIz", '\\"'),
    _around("secret_assignment", "token=", "a1b2c3d4e5f6", " ok"),
)

SURVIVORS: Final = (
    "$190,000",
    "1,234,567.89",
    "158.33",
    "2026-11-21",
    "2026-11-21T09:04:00.123456Z",
    "123e4567-e89b-12d3-a456-426614174000",
    "call_" + "abc123DEF456ghi789JKL",
    "toolu_" + "01A09q90qw90lq917835lq9",
    "chatcmpl-" + "9abcDEFghijklmnop1234567890",
    "msg_" + "01XFDUDYJgAACzvnptvVoYEL",
    "run-" + "0192f0c1d2e3f4a5b6c7d8e9f0a1b2c3",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "sha256:e3b0c44298fc1c149afbf4c8996fb924",
    "max_tokens: 4096",
    '"max_tokens": 4096, "prompt_tokens": 12345678',
    "next_page_token=CAEQAA1234567890",
    '"eos_token": "<|endoftext|>"',
    "1763715840123456789",
    "1763715840123",
    "US0378331005",
    "ORDER-2024-000123456789",
    "fp_44709d6fcb",
    "gpt-4o-mini-2024-07-18",
    "claude-sonnet-4-20250514",
    "sk-toggleable__label-arrow",
    "sk-container-id-1",
    "task-force-meeting-agenda-for-tuesday",
    "https://example.com:8443/a/b?page=2&order=asc#top",
    "http://user@example.com/x",
    "key: value",
    "keyboard=qwertyuiop",
    "the bearer of this letter is honest",
    "a basic understanding of tokens",
    "Password: must be at least 8 characters",
    "password: incorrect",
    "password = get_password()",
    "password=self.password",
    'api_key=os.environ["OPENAI_API_KEY"]',
    "api_key=settings.API_KEY",
    "token: str = None",
    "password=<your password>",
    "password=${DB_PASSWORD}",
    "api_key=YOUR_API_KEY_HERE",
    "secret: ********",
    "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" * 12,
)
