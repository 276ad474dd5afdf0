"""Every limit of the replay service, named once."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

# ── One call ────────────────────────────────────────────────────────────────────────────────────────
DEADLINE_S_MAX: Final = 120.0
"""A call is ended after this time, whatever its client allows."""
REQUEST_BYTES_MAX: Final = 4 * MIB
"""Requests are small; an import comes in pieces."""
IMPORT_BYTES_MAX: Final = 512 * MIB
EXPORT_PIECE_BYTES: Final = MIB
MESSAGE_CHARS_MAX: Final = 1000
"""Clients refuse trailing metadata beyond 8 KiB; the message of an error travels in it twice."""
HINT_CHARS_MAX: Final = 500

# ── All calls ───────────────────────────────────────────────────────────────────────────────────────
CONCURRENT_CALLS_MAX: Final = 128
THREADS_MAX: Final = 8
RATE_PER_S_MAX: Final = 1000.0
"""Calls of one tenant in a second, on average."""
RATE_BURST_MAX: Final = 2000.0
STOP_GRACE_S: Final = 5.0

# ── Freshness ───────────────────────────────────────────────────────────────────────────────────────
FRESHEN_S_MAX: Final = 5.0
"""How long a read waits for what the collector has acknowledged to reach the store."""
FRESHEN_MISSING_S_MAX: Final = 20.0
"""How long one more waits that asks for a run that the store does not have, while the store is behind."""

# ── Phoenix beside us ───────────────────────────────────────────────────────────────────────────────
PHOENIX_READY_S_MAX: Final = 180.0
"""A first start imports for some 20 s and migrates for 3; a busy machine takes several times that."""
PHOENIX_POLL_S: Final = 0.25
PHOENIX_RESTARTS_MAX: Final = 5
PHOENIX_BACKOFF_S: Final = (1.0, 30.0)
PHOENIX_FORGET_S: Final = 600.0
"""After running this long, earlier restarts no longer count."""
PHOENIX_STOP_S: Final = 10.0
PHOENIX_LOG_BYTES_MAX: Final = 16 * MIB
"""A larger log is set aside at the next start; the one set aside before is dropped."""

# ── The store ───────────────────────────────────────────────────────────────────────────────────────
STORE_WAIT_S_MAX: Final = 600.0
"""How long `spanreplay serve` waits for a store that does not answer or has no tables, before it ends."""
