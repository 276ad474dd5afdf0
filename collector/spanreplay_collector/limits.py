"""Every limit of the collector, named once."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

# ── Receiving ───────────────────────────────────────────────────────────────────────────────────────
INFLIGHT_BYTES_MAX: Final = 256 * MIB
"""Requests being received at one time, decompressed; more are told to come back."""
BODY_TIMEOUT_S: Final = 60.0
"""A client that sends its body more slowly than this is cut off."""
ZSTD_WINDOW_BYTES_MAX: Final = 128 * MIB
ZSTD_SLICE_BYTES: Final = 1024
"""Packed bytes unpacked at once: 128 KiB for each four, so 32 MiB at most."""
PARSE_INLINE_BYTES_MAX: Final = 256 * 1024
INFLATE_INLINE_BYTES_MAX: Final = 16 * 1024
"""Larger requests are checked and unpacked on a thread, so that small ones are not kept waiting."""
PARSE_PIECE_BYTES: Final = 256 * 1024
"""What protobuf parses at once while a request is checked: two bytes may become more than a hundred."""
RETRY_AFTER_S: Final = 2
"""What a client is told to wait while too much is in flight."""
RETRY_AFTER_DISK_S: Final = 15
"""What a client is told to wait while the disk is full."""
JSON_BYTES_MAX: Final = 8 * MIB
"""OTLP/JSON is held five times while it is read: as bytes, text, values, message and protobuf."""
JSON_ITEMS_MAX: Final = 300_000
"""Values in it, by its brackets and commas, also those in texts; each becomes 100 to 200 bytes of Python objects."""
DISCARD_BYTES_MAX: Final = 256 * MIB
"""Unwanted bodies up to this size are read to the end, so that the client reads our answer."""
DISCARD_STRANGER_BYTES_MAX: Final = 4 * MIB
"""The same for a client that showed no valid token."""
DISCARD_TIMEOUT_S: Final = 10.0
GRPC_CALLS_MAX: Final = 1024
STOP_GRACE_S: Final = 5.0

# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
FILES_MAX: Final = 65_536
"""Open files that a collector asks the system for."""
FILES_RESERVED: Final = 1_024
"""Of these, what is not for OTLP/HTTP: log, store, gRPC, the replay service."""
HEADER_TIMEOUT_S: Final = 10
"""How long a client may take to send the header of a request."""
IDLE_S: Final = 75.0
"""How long a connection may be silent; longer than a body may take, and than SDKs wait between two exports."""
IDLE_CROWDED_S: Final = 10.0
"""The same while more than IDLE_CROWD_SHARE of the connections that there may be are open."""
IDLE_CROWD_SHARE: Final = 0.25
IDLE_SCAN_S: Final = 5.0
CLAIM_AHEAD_BYTES: Final = 64 * 1024
"""Of a stated length, what is counted as in flight before it has come: who only states one holds nobody up."""
READY_FRESH_S: Final = 1.0
"""How long an answer of /readyz is good for all who ask."""
READY_TIMEOUT_S: Final = 5.0
READY_ROOM_BYTES: Final = 1 * MIB
"""The log is ready while it takes at least so much more."""

# ── Log ─────────────────────────────────────────────────────────────────────────────────────────────
LOG_BYTES_MAX: Final = 4 * 1024 * MIB
"""The log on disk; above this, clients are refused until the loader has caught up."""
DISK_FREE_BYTES_MIN: Final = 256 * MIB
"""What is always left free on the disk."""
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
"""Spans that are rows at one time, a few KiB each; a larger load is stored in several parts."""
LOAD_LINGER_S: Final = 0.5
"""How long the loader waits for more before it loads a small batch."""
LOAD_BACKOFF_S: Final = (0.1, 15.0)
LOAD_DOUBT_TRIES: Final = 6
"""Failures of one batch before its records are tried one by one."""
LOAD_POISON_ROUNDS: Final = 3
LOAD_POISON_PROBES: Final = 8
"""Records that may fail one after the other before the store itself is thought to be the cause."""
REJECTED_BYTES_MAX: Final = 1024 * MIB
STOP_DRAIN_S: Final = 10.0
"""How long a stopping collector goes on loading; the rest is loaded after the next start."""

# ── Phoenix ─────────────────────────────────────────────────────────────────────────────────────────
PHOENIX_LAG_BYTES_MAX: Final = 256 * MIB
"""Phoenix may be this far behind; then the oldest is skipped and counted."""
PHOENIX_BATCH_SPANS: Final = 512
PHOENIX_BATCH_BYTES: Final = 4 * MIB
PHOENIX_TEXT_BYTES_MAX: Final = 64 * 1024
PHOENIX_HOLD_S: Final = 2.0
"""How long a trace waits for its root span, which names its project."""
PHOENIX_HELD_BYTES_MAX: Final = 16 * MIB
PHOENIX_SPAN_BYTES: Final = 1024
"""What a span that waits takes in memory besides its bytes, about."""
PHOENIX_TRACES_MAX: Final = 4096
"""Traces whose project is remembered."""
PHOENIX_BACKOFF_S: Final = (0.5, 30.0)
PHOENIX_BREAKER_S: Final = 60.0
PHOENIX_TIMEOUT_S: Final = 30.0
PHOENIX_PREVIEW_CHARS: Final = 2000
