"""Check the `Host` header of requests to a service on localhost, against DNS rebinding.

A web page whose owner points its domain to 127.0.0.1 can reach every service there, with its own domain as `Host`.
Such a domain is in the public DNS. Addresses, names without a dot and reserved names can't be, so they are allowed.
"""

from __future__ import annotations

import ipaddress
from typing import Final

_RESERVED: Final = (".localhost", ".local", ".internal", ".test", ".home.arpa")


def is_local_name(host: str) -> bool:
    """Whether a `Host` header, possibly "", names an address, this machine, or a name that nobody can register."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".")
    if "." not in name and ":" not in name:
        return True
    if name.endswith(_RESERVED):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
