"""Hashes of passwords, keys and sealed boxes, and a call behind which they are written."""

from nacl import bindings, public, pwhash

import spanreplay

WITH = ["entropy"]


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    key = public.PrivateKey.generate()
    made = pwhash.argon2id.str(b"secret", opslimit=1, memlimit=8192), public.SealedBox(key.public_key).encrypt(b"x")
    return made, bindings.crypto_sign_keypair(), bindings.crypto_box_keypair(), mark()
