"""Every error spanreplay raises, as one tree.

SpanreplayError                    base; catch this
├── ConfigError                    a setting or argument cannot be used
├── SourceError                    a recording cannot be found or read
│   ├── RunNotFound                no such run here
│   ├── AmbiguousRun               the prefix names more than one run
│   ├── ForeignFile                not a `.replay` file or spool
│   ├── DamagedRecording           truncated, or checksum does not match
│   └── NewerSchema                written by a newer spanreplay
├── ServiceError                   the replay service could not answer
│   ├── ServiceUnavailable         nothing answers at that address
│   └── AccessDenied               wrong or missing token
├── StoreError                     the store cannot be used
│   └── StoreLocked                another process owns the chDB directory
├── PortTaken                      a listening address is in use
└── Unserializable                 a value has no codec; carries its JSON path

ReplayMiss (BaseException)         a call of the replayed agent has no recorded answer
Suspended (BaseException)          the run waits for a human, and ends here
"""

from __future__ import annotations

from spanreplay.model.escape import escape

__all__ = [
    "AccessDenied",
    "AmbiguousRun",
    "ConfigError",
    "DamagedRecording",
    "ForeignFile",
    "NewerSchema",
    "PortTaken",
    "ReplayMiss",
    "RunNotFound",
    "ServiceError",
    "ServiceUnavailable",
    "SourceError",
    "SpanreplayError",
    "StoreError",
    "StoreLocked",
    "Suspended",
    "Unserializable",
]


class SpanreplayError(Exception):
    """Base of all errors; `hint` says what to do. Control characters in both texts are written out as escapes."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(escape(message, keep_lines=True))
        self.hint = escape(hint, keep_lines=True)


class ConfigError(SpanreplayError):
    """A setting or argument cannot be used."""


class SourceError(SpanreplayError):
    """A recording cannot be found or read."""


class RunNotFound(SourceError):
    """No such run in the place that was searched."""


class AmbiguousRun(SourceError):
    """A run-id prefix names more than one run."""


class ForeignFile(SourceError):
    """The file is not a `.replay` file or a spool file."""


class DamagedRecording(SourceError):
    """The recording is truncated or its checksum does not match."""


class NewerSchema(SourceError):
    """The recording was written by a newer spanreplay."""


class ServiceError(SpanreplayError):
    """The replay service could not answer."""


class ServiceUnavailable(ServiceError):
    """Nothing answers at the service's address."""


class AccessDenied(ServiceError):
    """The service refused the token."""


class StoreError(SpanreplayError):
    """The store cannot be used."""


class StoreLocked(StoreError):
    """Another process owns the embedded chDB directory."""


class PortTaken(SpanreplayError):
    """A listening address is in use."""


class Unserializable(SpanreplayError):
    """A value has no codec; `path` is its JSON path, `$` is the root."""

    def __init__(self, path: str, type_name: str) -> None:
        super().__init__(
            f"unserializable at {path}: {type_name}",
            hint="pass plain data, a pydantic model or a dataclass across this boundary",
        )
        self.path = path
        self.type_name = type_name


class ReplayMiss(BaseException):
    """A call of the replayed agent has no recorded answer, and none is made up.

    Not an `Exception`: SDK retry loops and tool nodes swallow `Exception` and would continue as
    if the call had merely failed. Python prints it in the agent's process, so the message is escaped here.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(escape(message, keep_lines=True))


def is_missed(exc: BaseException) -> bool:
    """Whether a call without an answer ended the work, alone or in a group with what it led to."""
    inner = getattr(exc, "exceptions", None)
    return isinstance(exc, ReplayMiss) or (isinstance(inner, tuple) and any(map(is_missed, inner)))


class Suspended(BaseException):
    """The run waits for a human's answer: it is recorded up to this point, and the recording block ends.

    Not an `Exception`: an agent that caught it would continue without the answer.
    """
