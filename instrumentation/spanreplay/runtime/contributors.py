"""What takes part in a run and adds to its manifest: files, environment, leaks, other spans.

The run knows these by interface; `activate` and the seams give it the objects.
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
    """A call in flight, as the run's books have it."""

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
        """Whether another thread records how it ended."""


class Output(Protocol):
    """What the agent writes to its standard streams."""

    @property
    def is_replaced(self) -> bool:
        """Whether the agent has put another object in the place of standard output."""

    flushes: bool
    """Whether what is written is flushed at once."""

    def write(self, text: str, times: int = 1) -> Any:
        """Write what a served call printed."""

    def note(self, text: str) -> None:
        """Text that goes past `sys.stdout` to a console."""

    def uninstall(self) -> None:
        """Give the streams back."""

    def describe(self, redactor: RunRedactor) -> dict[str, dict[str, Any]]:
        """Members of the manifest."""


class CodeState(Protocol):
    """The state that the agent keeps inside its code tree."""

    def list_read(self) -> list[str]:
        """The files of the code tree that were read."""

    def note_read(self, run: Any, path: str, whole: str = "") -> None:
        """A file of the code tree is about to be read."""

    def begin(self, run: Any, path: str, there: str, how: str) -> None:
        """A path is about to be changed: what is there is recorded, once. Raises: ReplayMiss."""

    def note_absent(self, path: str) -> None:
        """Nothing is at a path where somebody is about to make something, in the code tree or elsewhere."""

    def note_missing(self, path: str) -> None:
        """The agent has found nothing at a path of the code tree, before any program ran."""

    def note_made(self, path: str) -> None:
        """A program has made or changed a path: a replay begins without it if it was missing."""

    def list_absent(self) -> list[str]:
        """Paths where nothing was before the run made something there."""


class Files(Protocol):
    """The files that the agent writes."""

    @property
    def state(self) -> CodeState | None:
        """The state inside the code tree; None where the recording has none."""

    @property
    def program_ns(self) -> int:
        """When the run started its first program; 0 before that."""

    @property
    def sees_looks(self) -> bool:
        """Whether looks at files are calls."""

    @property
    def is_outside(self) -> Callable[[], bool]:
        """Whether what runs now is no part of the run."""

    @property
    def touched(self) -> Touched:
        """Paths that the agent has made, changed or removed."""

    def add(self, path: str, *, is_append: bool = False) -> None:
        """A file is about to be written; call it before it is opened."""

    def add_temporary(self, path: str) -> None:
        """A temporary file is about to be made for the agent; who reads it later may read what others wrote."""

    def add_again(self, path: str, *, is_new: bool) -> None:
        """A file that this run has written is about to be written again; `is_new`: without what it holds."""

    def end(self, path: str) -> None:
        """A file, or all in a folder, is about to be removed."""

    def hand_over(self, path: str) -> None:
        """A database or another library keeps a file from now on."""

    def show_to_program(self) -> None:
        """A program is about to start: what has been written until now is given to it."""

    def is_changed_by_program(self, path: str) -> bool:
        """Whether a file that this run has written was changed since by a program that could read it."""

    def add_directory(self, path: str) -> None:
        """A directory is about to be made."""

    def move(self, source: str, target: str) -> None:
        """A file or directory is about to be moved."""

    def has(self, path: str) -> bool:
        """Whether this run has written a file."""

    def list_made(self) -> list[str]:
        """Paths where nothing was before the run made something there."""

    def describe(self) -> dict[str, Any]:
        """For the manifest; reads the files that are left."""

    def is_temporary(self, path: str) -> bool:
        """Whether a path lies directly in the folder for temporary files."""

    def name(self, path: str) -> str:
        """A path as calls name it: what is made anew each time, with a name drawn at random, has one name."""

    def show(self, path: str) -> str:
        """A whole path as the manifest names it: from the run's folder on, redacted."""


class Scratch(Protocol):
    """The folder in which a replay keeps its files."""

    def below(self, path: str) -> str:
        """The path of the agent's that a path in the folder stands for."""


class Overlay(Protocol):
    """The files of a replay, beside those of this machine."""

    @property
    def scratch(self) -> Scratch:
        """The folder of the replay's files."""

    def find(self, path: str) -> str:
        """The real place of a path, for who reads past the replaced functions."""

    def take(self, path: str) -> str:
        """The real place of a path, for who writes past the replaced functions (a database)."""

    def holds(self, path: str) -> bool:
        """Whether a path lies in the folder of the replay's files."""

    def put(self, path: str, content: bytes) -> None:
        """Have a file with this content, as if the world had it."""

    def have(self, path: str, kind: str) -> None:
        """Have a `directory`, an empty `file` or, for '', nothing at a path, where the replay has not been yet."""


class Leaks(Protocol):
    """Input and output outside of every call."""

    def add(self, kind: str, what: str, detail: str, code: str, *, is_hole: bool) -> None:
        """Note one leak; `detail` is redacted here, and is no more than a name."""

    def describe(self) -> list[dict[str, Any]]:
        """For the manifest, in the order of their first appearance."""

    def for_manifest(self) -> dict[str, Any]:
        """Members of the manifest."""


class Audit(Protocol):
    """Every read with its place, for the doctor."""

    def add(self, kind: str, what: str, state: str, depth: int = 2) -> None:
        """Note one read; `depth` leads to the caller of what the agent called."""

    def describe(self) -> list[dict[str, str]]:
        """One row a kind of read and place, in the order of their first appearance."""


class Used(Protocol):
    """The variables and `.env` files that the run has used."""

    def read(self, name: object, frame: FrameType) -> None:
        """A variable is read by name."""

    def read_file(self, path: str, is_data: bool) -> None:
        """A `.env` file is read."""


class Environment(Protocol):
    """The environment variables that the agent reads."""

    settled: dict[str, bytes]
    """Variables of which another reading by name adds nothing, and their encoded names."""

    @property
    def used(self) -> Used:
        """The variables and `.env` files that the run has used."""

    def saw(self, name: str, value: str | None) -> None:
        """Note the first reading of a variable."""

    def describe(self) -> dict[str, str]:
        """For the manifest."""

    def for_manifest(self, parts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Members for the manifest; `parts` are what other processes of the run have left."""

    def find_differing(self, recorded: Any, env: Mapping[str, Any]) -> list[str]:
        """Names whose value is another than when it was recorded; none can be told with another redaction key."""


class OtherSpans(Protocol):
    """The spans that others make in the process."""

    first_trace: int
    """The id of the first trace that began here; 0 while none has."""

    def install(self, patches: Patches) -> None:
        """Listen; a provider's processors stay as they are."""

    def follow(self, run: Any, forward: Callable[[ReadableSpan], None]) -> None:
        """Go on for another run: this process was forked from that of the first one."""

    def name_unheard(self) -> str:
        """The class of the program's provider whose spans are not heard; '' where all are."""

    def for_manifest(self) -> dict[str, str]:
        """Members of the manifest."""

    def find(self, span: Any) -> SpanContext | None:
        """A span as the recording has it, for a call below it; None if the recording will not have it."""
