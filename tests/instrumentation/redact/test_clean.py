"""Harmless text of sources and documents that looks like a secret, by class, and real secrets in such places."""

from __future__ import annotations

import base64

import pytest

from spanreplay.redact import RunRedactor

CLEAN = {
    "a type after a weak name": "readonly session: Http2Session | undefined",
    "a class after a weak name": "exports.AbstractMessageSignature = AbstractMessageSignature;",
    "a theme's names": '{ token: "delimiter.parenthesis", open: "keyword.$0" }',
    "a comparison": "if self.update_password == 'always' and other:",
    "a comparison of variables": "console.log(aliceSecret === bobSecret);",
    "an expression": 'LS32_PAT = "(?:{hex}:{hex}|{ipv4})"',
    "names in a list": "'TCP_INQ', 'MD5_AUTH', 'S3_DISABLE_EXPRESS_SESSION_AUTH', 'OTHER'",
    "the name of a variable": "ENV_VAR_AUTH_TOKEN = 'CONTAINER_AUTHORIZATION_TOKEN'",
    "the name of a setting": "SECRET_KEY = 'provider_secret_access_key'",
    "a template's tag": 'name="set-password" value="{% translate \'Enable\' %}"',
    "a closing quote": 'def getpass(prompt: str = "Password: ", stream: TextIO | None = None) -> str: ...',
    "prose": "const password = 'Password used to generate key';",
    "a sentence": "SECRET_KEY = 'This is not a secret, be sure to change this'",
    "a second colon": 'MODE = "AWS::Auth::AccountIdEndpointMode"',
    "the working directory": '"PWD": "/Users/someone"',
    "a resource's name": '"ARN": "arn:aws:secretsmanager:us-west-2:123456789012:secret:MyDatabase-a1b2c3"',
    "an operation": '{"examples": {"GetSessionToken": [{"input": {"Duration": 3600}, "title": "To get one"}]}}',
    "a policy's statement": '{"Statement": [{"Sid": "Define-owner-access-rights", "Effect": "Allow"}]}',
    "small code": 'e==="("?this._output.space_before_token=!1:te!=="(",3',
    "a host": '{"Address": "my-mem-cluster.ameaqx.0001.use1.cache.amazonaws.com"}',
    "a network": 'IPv4Network("192.52.193.0/24")',
    "words in a URL": "redis://user:password@host, http://user:{password}@host",
    "bytes": "<Buffer 01 02 03 04 05>",
    "more bytes": "<Buffer 04 13 22 31 08 07 06 05>",
    "a long year": 'parse("+2016-11-01")',
    "arithmetic": "h=Z-16|0;if((b^-1)+2147483631>>>0)",
    "a mask": '"+44(0)151 4960###"',
    "a drawing": "M 2597 2516 \nQ 3559 1806 3559 1356 \nQ 2531 2678 2651 2914 \n",
    "an id of a message": "588665495492014081\n588665495517200384\n",
    "a file": 'privateKey="server.pem" GOOGLE_APPLICATION_CREDENTIALS="secrets/production/key.json"',
    "a path": "twistd myserver --auth passwd:/etc/passwd",
    "a variable of its own name": "CertificateOptions(privateKey=privateKey, certificate=cert)",
    "a parameter's description": "@param password: Password to associate with the user.",
    "classes of a version": '"V1EndpointAddress",\n    "V1EndpointConditions",\n    "V1Secret",\n    "V1SecretEnv",',
    "modules of names": '"V1Secret": ".models.v1_secret", "V1IPAddress": ".models.v1_ip_address",',
    "modules in a list": "'twisted.mail._cred',\n    'twisted.mail._pop3client',",
    "an attribute that is set": "userDatabase = pwd\n        self._pwd = userDatabase\n",
    "an attribute in another language": "components_Input.Password = inputPassword;\n",
    "a variable that begins with its name": "CertificateOptions(privateKey=privateKeyOpenSSL, certificate=cert)",
    "files in an option": '"ssl:443:privateKey=key.pem:certKey=crt.pem"',
    "the end of a question": """prompt = "{}@{}'s password: ".format(self.user, options["host"])""",
    "a tag of a description": "@param md5Password:\n        @rtype: L{bool}",
    "a workflow's variable": 'password: "${{ secrets.REGISTRY_PASSWORD }}"',
    "minified assignments": "t.SharedKeyCredential=t.StorageCredential=e.Other=void 0",
    "an entry point": "SECRET_KEY = 'HTTPServer.auth.plain.app:LoadKey'",
    "a name of a registry": "token='urn:ietf:params:oauth:token-type:access'",
    "a drawing's path": '<path d="m1.7 5.1.1.6-1.5 1.3z"/>',
    "a title": "Basic Operations\n================\n",
    "an id after a word": "idempotency_key_0192f0c1-d2e3-44a5-b6c7-d8e9f0a1b2c3",
    "a name after a word": "def test_api_key_validation_with_http2_and_json_v1(self): pass",
}
SECRETS = {
    "a short name": ('database_pw = "J8s!vR4#qL7@nT2$xM6"', "J8s!vR4#qL7@nT2$xM6"),
    "two words in a file of settings": ("db.password = correctHorse\n", "correctHorse"),
    "its own name and a number": ("password=password8472", "password8472"),
    "a dotted value": ('"api_secret": "k8s.Prod.4f9a1c22"', "k8s.Prod.4f9a1c22"),
    "a long name that begins with its word": ('"social_security_number"   :   "X9k2m4p7q1"', "X9k2m4p7q1"),
    "quotes and blanks before the separator": ('{\\\\"password\\\\"   : \\\\"hunter2xY9\\\\"}', "hunter2xY9"),
    "an attribute beside its name": ('<input name="password" value="hunter2x"/>', "hunter2x"),
    "a password that has the word in it": ("postgres://app:Sup3r.S3cret-pw@db.internal/main", "Sup3r.S3cret-pw"),
    "a user and a weak password": ("postgres://app:secret@db.internal/main", ":secret@"),
    "a vendor's word": ("vendorx_live_8fK2mQ7wZ1pL5tR9", "8fK2mQ7wZ1pL5tR9"),
    "a vendor's word and a broken body": ("acme_production_q3f81gdsgcm4ye89-5w-toy569ggj", "toy569ggj"),
    "an operation's argument": ("--reset-password hunter2secret9", "hunter2secret9"),
    "a card in a column": ("7,4242424242424242,2026-11-21\n", "4242424242424242"),
    "a phone in a column": ("7,+4915112345678,2026-11-21\n", "4915112345678"),
    "an IBAN in odd groups": ("ES91 2100 0418 45 0200051332", "0200051332"),
    "an encrypted token": (
        f"eyJhbGciOiJSU0EtT0FFUCJ9.{'OKOawDo13gRp2ojaHV7LFpZcgV7T6DVZ'}.{'48V1_ALb6US04U3b7dHn'}",
        "OKOawDo13",
    ),
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN.keys())
def test_r2_what_is_no_secret_stays(run: RunRedactor, text: str) -> None:
    """Not a character changes, neither in a text nor in a value."""
    assert run.text(text) == text
    assert run.value({"result": text}) == {"result": text}
    assert run.errors == 0


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS.keys())
def test_r1_what_stands_in_such_places_and_is_a_secret_goes(run: RunRedactor, text: str, secret: str) -> None:
    """The same places hide no real secret."""
    assert secret not in run.text(f"see {text} there")


@pytest.mark.parametrize("frame", ["a%20{}%20b", "\x1b[1m{}\x1b[0m", "a%3D{}"], ids=["percent", "colour", "equals"])
def test_r1_key_in_base64_behind_an_escape_is_found(run: RunRedactor, frame: str) -> None:
    """Base64 after an escape is decoded as well."""
    key = "gh" + "p_16C7e42F292c6912E7710c838347Ae178B4a"
    encoded = base64.b64encode(f"This is the token: {key}\n".encode()).decode()
    assert encoded[32:56] not in run.text(frame.replace("{}", encoded))


def test_r2_names_in_a_list_of_objects_under_a_secret_name_are_not_learned(run: RunRedactor) -> None:
    """Values are masked where they are; the names of their members stay unchanged everywhere."""
    run.value({"secrets": [{"VersionIdentifier9": "hunter2secret"}]})
    assert run.text("see VersionIdentifier9 and hunter2secret") == "see VersionIdentifier9 and hunter2secret"
