"""All limits of the replay service."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

# ── One call ────────────────────────────────────────────────────────────────────────────────────────
DEADLINE_S_MAX: Final = 120.0
"""A call is ended after this time, even if its client allows more."""
REQUEST_BYTES_MAX: Final = 4 * MIB
"""Requests are small; an import is streamed in pieces."""
IMPORT_BYTES_MAX: Final = 512 * MIB
EXPORT_PIECE_BYTES: Final = MIB
MESSAGE_CHARS_MAX: Final = 1000
"""Clients refuse trailing metadata beyond 8 KiB, which contains the error message twice."""
HINT_CHARS_MAX: Final = 500

# ── All calls ───────────────────────────────────────────────────────────────────────────────────────
CONCURRENT_CALLS_MAX: Final = 128
THREADS_MAX: Final = 8
RATE_PER_S_MAX: Final = 1000.0
"""Average number of calls per second allowed for one tenant."""
RATE_BURST_MAX: Final = 2000.0
STOP_GRACE_S: Final = 5.0

# ── Freshness ───────────────────────────────────────────────────────────────────────────────────────
FRESHEN_S_MAX: Final = 5.0
"""How long a read waits for acknowledged spans to reach the store."""
FRESHEN_MISSING_S_MAX: Final = 20.0
"""How long a read waits in addition if its run is missing while the store lags behind."""

# ── The Phoenix child process ───────────────────────────────────────────────────────────────────────
PHOENIX_READY_S_MAX: Final = 180.0
"""A first start takes some 20 s for imports and 3 s for migrations, several times that on a busy machine."""
PHOENIX_POLL_S: Final = 0.25
PHOENIX_RESTARTS_MAX: Final = 5
PHOENIX_BACKOFF_S: Final = (1.0, 30.0)
PHOENIX_FORGET_S: Final = 600.0
"""After running this long, earlier restarts no longer count."""
PHOENIX_STOP_S: Final = 10.0
PHOENIX_LOG_BYTES_MAX: Final = 16 * MIB
"""A larger log is renamed at the next start, replacing the previously renamed one."""

# ── The store ───────────────────────────────────────────────────────────────────────────────────────
STORE_WAIT_S_MAX: Final = 600.0
"""How long `spanreplay serve` waits for a store that does not answer or has no tables before it gives up."""

ERASED_MAX: Final = 1_000
"""Maximum number of runs, of users and of sessions in one request to erase."""
REASON_CHARS_MAX: Final = 1_000
"""Characters of the reason for a pin."""
