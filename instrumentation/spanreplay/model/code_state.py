"""Names in the calls that hold the state of a code tree before the run changes it."""

from __future__ import annotations

ABSENT, ENTRIES, AT = "absent", "entries", "at"

KEEPS, APPENDS, REPLACES, NAMES, NOTHING = "keeps", "appends", "replaces", "names", "nothing"
"""What a change does: it works on the content; adds to it; needs none of it; is of a file whose content is
recorded otherwise (a database, a log); changes nothing where something is."""
