"""Keys, signatures and encryption that draw random values, and a call behind which these are written."""

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa, x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def show(key):
    encoding, form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def use():
    sha = hashes.SHA256()
    curve, large = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
    keys = [curve, large, ed25519.Ed25519PrivateKey.generate(), x25519.X25519PrivateKey.generate()]
    pss, oaep = padding.PSS(padding.MGF1(sha), 20), padding.OAEP(padding.MGF1(sha), sha, None)
    signed = [curve.sign(b"x", ec.ECDSA(sha)), large.sign(b"x", pss, sha), large.sign(b"x", padding.PKCS1v15(), sha)]
    hidden = [large.public_key().encrypt(b"x", each) for each in (padding.PKCS1v15(), oaep)]
    old = dsa.generate_private_key(1024)  # noqa: S505 -- a larger one takes seconds
    return [*map(show, keys), *signed, *hidden, old.sign(b"x", sha), AESGCM.generate_key(128), mark()]
