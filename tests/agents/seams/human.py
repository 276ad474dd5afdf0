"""A question to whoever sits at the terminal."""

import io
import sys
from secrets import token_hex


def use():
    before = sys.stdin
    sys.stdin = io.StringIO(f"{token_hex(8)}\n")
    try:
        return input("Who are you? ")
    finally:
        sys.stdin = before


def fail():
    before = sys.stdin
    sys.stdin = io.StringIO("")
    try:
        return input("Who are you? ")
    finally:
        sys.stdin = before
