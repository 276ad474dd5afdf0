"""Limits of the spool and of `.replay` files; limits shared with other parts are in `config`."""

from __future__ import annotations

from typing import Final

from spanreplay.model.config import OTLP_MESSAGE_BYTES_MAX

FRAME_BYTES_MAX: Final = OTLP_MESSAGE_BYTES_MAX
"""Size of one payload; a larger one is dropped and counted, and a file that claims one is damaged."""
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""At this size a writer starts a new file, so that a long-lived server's shipped files can be deleted."""
FSYNC_INTERVAL_MS: Final = 1_000
REMOVAL_CHECK_MS: Final = 20
"""How often a writer checks that its file still has a name; records in a removed file are counted as dropped."""
USAGE_RESCAN_BYTES: Final = 64 * 1024 * 1024
"""A writer measures the directory again after this many bytes, because other processes write there too."""
USAGE_RESCAN_MS: Final = 1_000
"""A full directory is measured again at most this often."""
USAGE_SCAN_MS_MAX: Final = 5
"""A directory that takes longer to measure, because it has many files, is measured in a thread of its own."""

PREFIX_CHARS_MIN: Final = 6
"""Shortest prefix of a run id that is looked up."""
CANDIDATES_SHOWN_MAX: Final = 10

BUNDLE_BYTES_MAX: Final = 1024**3
"""Spans in one `.replay` file, uncompressed."""
BUNDLE_HEADER_BYTES_MAX: Final = 64 * 1024
BUNDLE_DIRECTORY_BYTES_MAX: Final = 64 * 1024
"""Table of contents of a `.replay` file; ours has two entries."""

VALUE_DEPTH_MAX: Final = 16
"""Nesting of one attribute value; protobuf readers refuse about 100 nested messages, a level costs 3."""
ENCODER_CACHE_ITEMS_MAX: Final = 256

SHIP_REQUEST_TIMEOUT_MS: Final = 10_000
SHIP_SCAN_MS: Final = 5_000
"""How often a shipper looks for files that a dead process left."""
SHIP_BACKOFF_MS: Final = 500
SHIP_BACKOFF_MAX_MS: Final = 30_000
SHIP_RETRY_AFTER_MAX_MS: Final = 300_000
SHIP_SERVER_ERRORS_MAX: Final = 5
"""Tries of a batch that the collector answers with 500 before it is treated as refused."""
SHIP_REPLY_BYTES_MAX: Final = 64 * 1024
ODD_FILES_SAID_MAX: Final = 100
"""Entries of a spool directory that are not plain files and that the log names."""
