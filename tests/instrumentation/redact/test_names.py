"""Names that make their value a secret, in JSON, in text and in headers; and values that stay despite their name."""

from __future__ import annotations

import pytest

from spanreplay.redact import RunRedactor
from spanreplay.redact.names import Strength, secret_name

_VALUE = "x7Gk29QmPz81" + "LwTn"
_NAMES = [
    "password",
    "passwd",
    "pwd",
    "pass",
    "passcode",
    "pin",
    "otp",
    "totp",
    "mfa_code",
    "secret",
    "client_secret",
    "clientSecret",
    "app_secret",
    "shared_secret",
    "token",
    "auth_token",
    "access_token",
    "accessToken",
    "refreshToken",
    "id_token",
    "sessionToken",
    "session",
    "session_id",
    "sessionid",
    "sid",
    "PHPSESSID",
    "JSESSIONID",
    "csrf",
    "csrf_token",
    "xsrf-token",
    "api_key",
    "apiKey",
    "apikey",
    "x-api-key",
    "X-API-Key",
    "X-Auth-Token",
    "X-Auth-Key",
    "X-Vault-Token",
    "authorization",
    "Proxy-Authorization",
    "cookie",
    "Set-Cookie",
    "private_key",
    "ssh_key",
    "signing_key",
    "encryption_key",
    "master_key",
    "key_material",
    "aes_key",
    "hmac_key",
    "jwt",
    "bearer",
    "auth",
    "credentials",
    "credential",
    "creds",
    "connection_string",
    "connectionString",
    "conn_str",
    "dsn",
    "database_url",
    "webhook_url",
    "webhook_secret",
    "account_key",
    "storage_key",
    "sas",
    "sas_token",
    "signature",
    "sig",
    "nonce",
    "license_key",
    "recovery_code",
    "backup_codes",
    "seed_phrase",
    "mnemonic",
    "ssn",
    "social_security_number",
    "card_number",
    "cardNumber",
    "pan",
    "cvv",
    "cvc",
    "iban",
    "account_number",
    "routing_number",
    "passport",
    "tax_id",
    "date_of_birth",
    "dob",
    "phone",
    "email",
    "address",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_PAT",
    "NPM_AUTH",
    "PGPASSWORD",
    "MYSQL_PWD",
    "DB_PASS",
    "user_pass",
    "PASSWORD_HASH",
    "hashed_password",
    "pw",
    "pswd",
    "passw0rd",
    "kennwort",
    "Passwort",
    "contraseña",
    "motdepasse",
    "senha",
    "пароль",
    "密码",
    "パスワード",
    "비밀번호",
]
_SEPARATORS = ("=", ": ", " = ", ":=", "=>", " => ", ":::=", "?=", "->", "==", '": "', "' => '", '"="')


@pytest.mark.parametrize("name", _NAMES)
def test_r1_value_under_a_name_of_a_secret_goes(run: RunRedactor, name: str) -> None:
    """The value is redacted in JSON, in an assignment, and in a header."""
    assert run.value({name: _VALUE}) != {name: _VALUE}
    assert _VALUE not in run.text(f"{name}={_VALUE}")
    if name.isascii():
        assert run.headers([(name.replace("_", "-"), _VALUE)])[0][1] != _VALUE


@pytest.mark.parametrize("separator", _SEPARATORS)
def test_r1_separators_of_every_language_are_known(run: RunRedactor, separator: str) -> None:
    """YAML, Ruby, Make, BNF, Go and other languages have their own separators between name and value."""
    text = f"db_password{separator}hunter2secret;"
    assert "hunter2secret" not in run.text(text)
    assert "hunter2secret" not in run.text("<db_password>hunter2secret</db_password>")
    assert "hunter2secret" not in run.text('<add key="password" value="hunter2secret"/>')


@pytest.mark.parametrize(
    ("name", "value"), [("pin", 4821), ("cvv", 123), ("ssn", 123456789), ("card", 4111111111111111)]
)
def test_r1_numbers_under_a_persons_names_go(run: RunRedactor, name: str, value: int) -> None:
    """A number under a name of personal data is redacted like its digits as text."""
    assert str(run.value({name: value})[name]).startswith("rdx-")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pass", "failed"),
        ("pass", True),
        ("pin", 13 - 8),
        ("email", "ada"),
        ("address", "localhost:11434"),
        ("address", "Main Street 5"),
        ("session", "morning"),
        ("database_url", "sqlite:///data.db"),
        ("signature", "EqQB" + "aB3dE6gH9jK2" * 20),
        ("token_type", "bearer"),
        ("public_key", "ssh-ed25519 AAAA"),
        ("author", "bob smith"),
        ("monkey", _VALUE),
        ("secretary", "Alice Jones"),
        ("cookie_policy", "accept all"),
        ("session.id", _VALUE),
    ],
)
def test_r2_harmless_values_and_names_stay(run: RunRedactor, name: str, value: object) -> None:
    """Test results, pins of a board, hosts and a model's own signatures are not secrets."""
    assert run.value({name: value}) == {name: value}


@pytest.mark.parametrize(
    "text",
    [
        "Usage: tool --password --all-databases\nrun --all-databases now",
        "def f(credentials: HTTPBasicCredentials): ...",
        "password: SecretStr = Field(...)",
        "Enter password:\n\n`htpasswd -c file`",
        "api_key=API_KEY",
        "client = OpenAI(api_key=OPENAI_API_KEY)",
        'api_key="sk-..."',
        "Set `api_key` to `sk-...`, or pass `api_key=API_KEY`.",
        "access-control-allow-credentials: true",
        "the card is a visa; the account was closed",
    ],
)
def test_r2_prose_and_code_about_secrets_stay(run: RunRedactor, text: str) -> None:
    """Options without values, types, constants and blank lines are not secrets just because of a nearby name."""
    assert run.text(text) == text


def test_r2_header_that_only_sounds_like_a_secret_stays(run: RunRedactor) -> None:
    """Header names are matched as strictly as members of JSON."""
    pairs = [["access-control-allow-credentials", "true"], ["x-token-type", "bearer"]]
    assert run.headers([tuple(pair) for pair in pairs]) == pairs


def test_r2_what_an_object_under_a_secret_name_holds_is_not_remembered(run: RunRedactor) -> None:
    """The object is hidden where it is; `Inactive` and a user's name stay in every other text."""
    shown = run.value({"AccessKey": {"UserName": "bob.smith", "Status": "Inactive", "CreateDate": "2026-01-01"}})
    assert all(value.startswith("rdx-") for value in shown["AccessKey"].values())
    text = "The user bob.smith is Inactive since 2026-01-01"
    assert run.text(text) == text


def test_r2_remembered_values_are_found_as_whole_words(run: RunRedactor) -> None:
    """A word that was somebody's password is only matched as a word; a long mixed one is found anywhere."""
    run.value({"password": "internet"})
    run.value({"password": "London2024"})
    run.value({"password": "correct2horse7battery"})
    for text in ("Search the internet for internetworking news", "x_London20245"):
        assert run.text(text) == text
    assert "London2024" not in run.text("try London2024, please")
    assert "correct2horse7battery" not in run.text("xxcorrect2horse7batteryxx")


def test_names_have_the_strength_of_their_last_words() -> None:
    """Names are compared by whole words, in any case and any style of joining them."""
    assert secret_name("smtpPass") is Strength.LIKELY
    assert secret_name("X-Amz-Security-Token") is Strength.STRONG
    assert secret_name("user.phoneNumber") is Strength.PERSONAL
    assert secret_name("compass") is secret_name("bypass") is secret_name("spin") is None
