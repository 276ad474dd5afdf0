"""Names in the calls that hold earlier states of files: files that a run reads, and a code tree before its changes."""

from __future__ import annotations

BY_PROGRAM = "by_program"
"""Member of the manifest: a file's final state is the work of a program that the run started."""
SHARED, APPENDED = "shared", "appended"
"""Member of the manifest: other runs wrote a file at the same time; its value if the run has only appended to it."""
ABSENT, ENTRIES, AT, CONTENT, TIMES = "absent", "entries", "at", "content", "times"
DIRECTORIES = "directories"
"""Member of the manifest: directories that the run made where nothing was before."""

KEEPS, APPENDS, REPLACES, NAMES, NOTHING = "keeps", "appends", "replaces", "names", "nothing"
"""Effect of a change: it works on the content; adds to it; needs none of it; concerns a file whose content is
recorded elsewhere (a database, a log); changes nothing if something already exists there."""
