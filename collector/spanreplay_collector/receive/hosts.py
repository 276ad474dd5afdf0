"""Which names a client may call a service on loopback by.

A web page whose name its owner points to 127.0.0.1 speaks to every service there, with its own name as `Host`. Such
a name is one of the public DNS; addresses, names without a dot and those that no registry gives out are none.
"""

from __future__ import annotations

import ipaddress
from typing import Final

_RESERVED: Final = (".localhost", ".local", ".internal", ".test", ".home.arpa")


def is_local_name(host: str) -> bool:
    """Whether a `Host` header names an address, this machine, or a name that nobody can register; "" is none."""
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
