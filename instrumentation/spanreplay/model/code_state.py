"""Names in the calls that hold files as they were: those that a run reads, and a code tree before it changes it."""

from __future__ import annotations

BY_PROGRAM = "by_program"
"""In the manifest: what is left of a file is the work of a program that the run started."""
ABSENT, ENTRIES, AT, CONTENT, TIMES = "absent", "entries", "at", "content", "times"

KEEPS, APPENDS, REPLACES, NAMES, NOTHING = "keeps", "appends", "replaces", "names", "nothing"
"""What a change does: it works on the content; adds to it; needs none of it; is of a file whose content is
recorded otherwise (a database, a log); changes nothing where something is."""
