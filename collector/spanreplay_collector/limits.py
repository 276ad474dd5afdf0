"""All limits of the collector."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

# ── Receiving ───────────────────────────────────────────────────────────────────────────────────────
INFLIGHT_BYTES_MAX: Final = 256 * MIB
"""Decompressed bytes of all requests being received at one time; further clients are told to retry."""
BODY_TIMEOUT_S: Final = 60.0
"""Time a client has to send a whole request body before it is cut off."""
ZSTD_WINDOW_BYTES_MAX: Final = 128 * MIB
ZSTD_SLICE_BYTES: Final = 256
"""Compressed bytes unpacked at once: four of them may become 128 KiB, so at most 8 MiB."""
PARSE_INLINE_BYTES_MAX: Final = 256 * 1024
INFLATE_INLINE_BYTES_MAX: Final = 16 * 1024
"""Larger requests are checked and unpacked on a thread, so that they don't delay small ones."""
PARSE_PIECE_BYTES: Final = 256 * 1024
"""Bytes that protobuf parses at once while a request is checked: two bytes may become more than a hundred."""
FIELDS_MAX: Final = 300_000
"""Fields of large messages in an OTLP request, spans among them: 40 KB of gzip may hold twenty million.

Each takes a microsecond to check, and a span about 200 bytes while it is stored.
"""
RETRY_AFTER_S: Final = 2
"""Retry delay sent to a client while too much is in flight."""
RETRY_AFTER_DISK_S: Final = 15
"""Retry delay sent to a client while the disk is full."""
JSON_BYTES_MAX: Final = 18 * MIB
"""OTLP/JSON is in memory several times while it is read: as bytes, text, values, message and protobuf."""
JSON_TEXT_BYTES_MAX: Final = 15 * MIB
"""The same if a character is not ASCII: a Python string that holds one is kept as UTF-8, too."""
JSON_WIDE_BYTES_MAX: Final = 8 * MIB
"""The same with an emoji: a Python string that holds one has four bytes for each character."""
JSON_ITEMS_MAX: Final = 300_000
"""Values in an OTLP/JSON request, estimated by counting brackets and commas, including those inside strings.

Each value becomes 100 to 200 bytes of Python objects.
"""
DISCARD_BYTES_MAX: Final = 256 * MIB
"""Rejected bodies up to this size are read to the end, so that the client reads the response."""
DISCARD_STRANGER_BYTES_MAX: Final = 4 * MIB
"""The same for a client without a valid token."""
DISCARD_TIMEOUT_S: Final = 10.0
GRPC_CALLS_MAX: Final = 1024
GRPC_EXPORT_BYTES_MAX: Final = 30 * MIB
"""Size of an OTLP/gRPC request: gRPC has it in memory three times. Larger spans can be sent over OTLP/HTTP."""
STOP_GRACE_S: Final = 5.0

# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
FILES_MAX: Final = 65_536
"""Limit on open files that a collector requests from the system."""
FILES_RESERVED: Final = 1_024
"""Files out of FILES_MAX that OTLP/HTTP may not use: they serve log, store, gRPC and the replay service."""
HEADER_TIMEOUT_S: Final = 10
"""How long a client may take to send the header of a request."""
IDLE_S: Final = 75.0
"""How long a connection may be silent; longer than BODY_TIMEOUT_S and than the export interval of SDKs."""
IDLE_CROWDED_S: Final = 10.0
"""The same while more than IDLE_CROWD_SHARE of the allowed connections are open."""
IDLE_CROWD_SHARE: Final = 0.25
IDLE_SCAN_S: Final = 5.0
CLAIM_AHEAD_BYTES: Final = 64 * 1024
"""Bytes of a stated content-length counted as in flight before they arrive.

The limit is low so that a client that only states a length cannot block others.
"""
READY_FRESH_S: Final = 1.0
"""How long a result of /readyz is reused for further requests."""
READY_TIMEOUT_S: Final = 5.0
READY_ROOM_BYTES: Final = 1 * MIB
"""The log is ready while it has room for at least this many bytes."""

# ── Log ─────────────────────────────────────────────────────────────────────────────────────────────
LOG_BYTES_MAX: Final = 4 * 1024 * MIB
"""Size of the log on disk; above this, clients are refused until the loader has caught up."""
DISK_FREE_BYTES_MIN: Final = 256 * MIB
"""Bytes always left free on the disk."""
SEGMENT_BYTES: Final = 32 * MIB
SEGMENT_AGE_S: Final = 30.0
"""A segment is closed after this time even if it is small, so that it can be deleted."""
GROUP_BYTES_MAX: Final = 128 * MIB
GROUP_RECORDS_MAX: Final = 4096
RECORD_BYTES_MAX: Final = 128 * MIB
TENANT_BYTES_MAX: Final = 128

# ── Loader ──────────────────────────────────────────────────────────────────────────────────────────
LOAD_BYTES_MAX: Final = 16 * MIB
LOAD_RECORDS_MAX: Final = 4096
LOAD_ROWS_MAX: Final = 8192
"""Spans held as rows at one time, a few KiB each; a larger load is stored in several parts."""
LOAD_LINGER_S: Final = 0.5
"""How long the loader waits for more records before it loads a small batch."""
LOAD_BACKOFF_S: Final = (0.1, 15.0)
LOAD_DOUBT_TRIES: Final = 6
"""Failures of one batch before its records are tried one by one."""
LOAD_POISON_ROUNDS: Final = 3
LOAD_POISON_PROBES: Final = 8
"""Records that may fail in a row before the store itself is assumed to be the cause."""
REJECTED_BYTES_MAX: Final = 1024 * MIB
STOP_DRAIN_S: Final = 10.0
"""How long a stopping collector keeps loading; the rest is loaded after the next start."""

# ── Phoenix ─────────────────────────────────────────────────────────────────────────────────────────
PHOENIX_LAG_BYTES_MAX: Final = 256 * MIB
"""How far Phoenix may lag behind; beyond that the oldest records are skipped and counted."""
PHOENIX_BATCH_SPANS: Final = 512
PHOENIX_BATCH_BYTES: Final = 4 * MIB
PHOENIX_TEXT_BYTES_MAX: Final = 64 * 1024
PHOENIX_HOLD_S: Final = 2.0
"""How long a trace waits for its root span, which names its project."""
PHOENIX_HELD_BYTES_MAX: Final = 16 * MIB
PHOENIX_SPAN_BYTES: Final = 1024
"""Approximate memory of a waiting span in addition to its bytes."""
PHOENIX_TRACES_MAX: Final = 4096
"""Traces whose project is remembered."""
PHOENIX_BACKOFF_S: Final = (0.5, 30.0)
PHOENIX_BREAKER_S: Final = 60.0
PHOENIX_TIMEOUT_S: Final = 30.0
PHOENIX_PREVIEW_CHARS: Final = 2000
