"""Objects that take part in a run and add to its manifest: files, environment, leaks, other spans.

The run knows them by interface; `activate` and the seams provide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.process.touched import Touched

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.patches import Patches


class OpenCall(Protocol):
    """A call in flight, as the run registers it."""

    seq: int
    lane: Lane
    on_abandon: Callable[[], None] | None
    """Ends the record of a stream that nobody read to its end."""

    def abandon(self) -> None:
        """End the record of a call that nobody ends."""

    def leave_out(self) -> None:
        """Record nothing of a call."""

    @property
    def is_closing_elsewhere(self) -> bool:
        """Whether another thread records the call's end."""


class Output(Protocol):
    """The agent's output to its standard streams."""

    @property
    def is_replaced(self) -> bool:
        """Whether the agent has replaced `sys.stdout`."""

    flushes: bool
    """Whether written text is flushed immediately."""
    characters: int
    """How many characters were written to `sys.stdout`."""

    def write(self, text: str, times: int = 1) -> Any:
        """Write a served call's printed text."""

    def note(self, text: str) -> None:
        """Note text that goes to a console without passing through `sys.stdout`."""

    def uninstall(self) -> None:
        """Restore the streams."""

    def describe(self, redactor: RunRedactor) -> dict[str, dict[str, Any]]:
        """Members of the manifest."""


class CodeState(Protocol):
    """The state that the agent keeps inside its code tree."""

    is_shared: bool
    """Whether other runs of the process may read what this one changes, and are not replayed with it."""

    def list_read(self) -> list[str]:
        """The files of the code tree that were read."""

    def note_read(self, run: Any, path: str, whole: str = "") -> None:
        """A file of the code tree is about to be read."""

    def begin(self, run: Any, path: str, there: str, how: str) -> None:
        """A path is about to be changed: its current content is recorded, once. Raises: ReplayMiss."""

    def note_absent(self, path: str) -> None:
        """Nothing exists at a path where something is about to be made, in the code tree or elsewhere."""

    def note_missing(self, path: str) -> None:
        """The agent has found nothing at a path of the code tree, before any program ran."""

    def note_made(self, path: str) -> None:
        """A program has made or changed a path: a replay begins without it if it was missing."""

    def list_absent(self) -> list[str]:
        """Paths where nothing existed before the run made something there."""


class Files(Protocol):
    """The files that the agent writes."""

    @property
    def state(self) -> CodeState | None:
        """The state inside the code tree; None if the recording has none."""

    @property
    def program_ns(self) -> int:
        """When the run started its first program; 0 before that."""

    @property
    def sees_looks(self) -> bool:
        """Whether checks of files (such as `stat`) are calls."""

    @property
    def is_outside(self) -> Callable[[], bool]:
        """Whether the code running now is outside the run."""

    @property
    def touched(self) -> Touched:
        """Paths that the agent has made, changed or removed."""

    def add(self, path: str, *, is_append: bool = False) -> None:
        """A file is about to be written; call this before it is opened."""

    def add_temporary(self, path: str) -> None:
        """A temporary file is about to be made for the agent; a later reader may read text that others wrote."""

    def add_again(self, path: str, *, is_new: bool) -> None:
        """A file that this run has written is about to be written again; `is_new`: without its present content."""

    def end(self, path: str) -> None:
        """A file, or everything in a folder, is about to be removed."""

    def list_code_read(self) -> list[str]:
        """Files of the agent's code tree that it has read itself, such as prompts."""

    def hand_over(self, path: str) -> None:
        """From now on a database or another library keeps a file."""

    def show_to_program(self) -> None:
        """A program is about to start: everything written until now is visible to it."""

    def is_changed_by_program(self, path: str) -> bool:
        """Whether a file that this run has written was changed since by a program that could read it."""

    def add_directory(self, path: str) -> None:
        """A directory is about to be made."""

    def move(self, source: str, target: str) -> None:
        """A file or directory is about to be moved."""

    def has(self, path: str) -> bool:
        """Whether this run has written a file."""

    def list_made(self) -> list[str]:
        """Paths where nothing existed before the run made something there."""

    def describe(self) -> dict[str, Any]:
        """Members for the manifest; reads the files that are left."""

    def take_base(self, path: str) -> int | None:
        """How long a file was before this run appended to it; None if that is recorded, or for other files."""

    def put_base(self, path: str, size: int) -> None:
        """State, in a replay, how long a file was before the run appended to it."""

    def is_temporary(self, path: str) -> bool:
        """Whether a path lies directly in the folder for temporary files."""

    def name(self, path: str) -> str:
        """A path as calls name it; files that are created each time under a random name share one name."""

    def show(self, path: str) -> str:
        """A whole path as the manifest names it: relative to the run's folder, redacted."""


class Scratch(Protocol):
    """The folder in which a replay keeps its files."""

    def below(self, path: str) -> str:
        """The agent's path that a path in the folder stands for."""


class Overlay(Protocol):
    """The files of a replay, beside those of this machine."""

    @property
    def scratch(self) -> Scratch:
        """The folder of the replay's files."""

    def find(self, path: str) -> str:
        """The real place of a path, for readers that bypass the replaced functions."""

    def take(self, path: str) -> str:
        """The real place of a path, for writers that bypass the replaced functions (a database)."""

    def holds(self, path: str) -> bool:
        """Whether a path lies in the folder of the replay's files."""

    def put(self, path: str, content: bytes) -> None:
        """Provide a file with this content, as if it existed outside."""

    def have(self, path: str, kind: str) -> None:
        """Provide a `directory`, an empty `file` or, for '', nothing at a path that the replay has not used yet."""


class Leaks(Protocol):
    """Input and output outside every call."""

    @property
    def seq(self) -> int:
        """The number of the last call that has begun."""

    def add(self, kind: str, what: str, detail: str, code: str, *, is_hole: bool, seq: int | None = None) -> None:
        """Note one leak after call `seq` (default: the last one); `detail` is only a name, and is redacted here."""

    def look(self, seq: int) -> None:
        """Note that a call begins, with its number."""

    def note_background(self, library: str) -> None:
        """Note that a library reads the clock or random values in a thread of its own, where they are not recorded."""

    def note_drawing(self, library: str) -> None:
        """Note that a library writes to standard output in a thread of its own."""

    def describe(self) -> list[dict[str, Any]]:
        """Members for the manifest, in the order of their first appearance."""

    def for_manifest(self) -> dict[str, Any]:
        """Members of the manifest."""


class Audit(Protocol):
    """The audit: every read with its place, for the doctor."""

    def add(self, kind: str, what: str, state: str, depth: int = 2) -> None:
        """Note one read; `depth` leads to the caller of the function that the agent called."""

    def describe(self) -> list[dict[str, str]]:
        """One row per kind of read and place, in the order of their first appearance."""


class Used(Protocol):
    """The variables and `.env` files that the run has used."""

    def read(self, name: object, frame: FrameType) -> None:
        """Note that a variable is read by name."""

    def read_file(self, path: str, is_data: bool) -> None:
        """Note that a `.env` file is read."""


class Environment(Protocol):
    """The environment variables that the agent reads."""

    settled: dict[str, bytes]
    """Variables whose further readings by name add nothing, and their encoded names."""

    @property
    def used(self) -> Used:
        """The variables and `.env` files that the run has used."""

    def saw(self, name: str, value: str | None) -> None:
        """Note the first reading of a variable."""

    def describe(self) -> dict[str, str]:
        """Members for the manifest."""

    def for_manifest(self, parts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Members for the manifest; `parts` are the contributions of other processes of the run."""

    def find_differing(self, recorded: Any, env: Mapping[str, Any]) -> list[str]:
        """Names whose value differs from the recorded one; with another redaction key no difference can be found."""


class OtherSpans(Protocol):
    """Spans that others make in the process."""

    first_trace: int
    """The id of the first trace that began here; 0 if none has."""

    def install(self, patches: Patches) -> None:
        """Listen; a provider's processors stay unchanged."""

    def follow(self, run: Any, forward: Callable[[ReadableSpan], None]) -> None:
        """Continue for another run: this process was forked from that of the first one."""

    def name_unheard(self) -> str:
        """The class of the program's provider whose spans are not heard; '' if all are heard."""

    def for_manifest(self) -> dict[str, str]:
        """Members of the manifest."""

    def find(self, span: Any) -> SpanContext | None:
        """A span as the recording will contain it, for a call below it; None if the recording won't contain it."""
