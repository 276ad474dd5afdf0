"""The ids that the program's own tracer makes: a replay makes the recorded ones.

A service returns the id of its trace in a header or an error message, and an agent prints it, so that support finds the
trace: such an id is a random number of the program's, whichever generator its provider uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import TracerProvider

from spanreplay.model import guard
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.reads import Source, source

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches


def _to_int(text: str) -> int:
    return int(text, 16)


def _to_text(number: int) -> str:
    return f"{number:x}"


_KIND: Final = "random"
_SOURCES: Final = {
    name: source(_KIND, f"opentelemetry.{name}", pack=_to_text, unpack=_to_int, is_loose=True)
    for name in ("generate_trace_id", "generate_span_id")
}


def install(patches: Patches, provider: Any) -> None:
    """Patch the generator of this provider, and those of the providers that the program makes from now on."""
    classes: set[type] = set()

    def cover(made: Any) -> None:
        generator = type(getattr(made, "id_generator", None))
        if generator in classes or not all(hasattr(generator, name) for name in _SOURCES):
            return
        classes.add(generator)
        for name, found in _SOURCES.items():
            patches.wrap(generator, name, _make(found))

    def made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        guard.guarded("ids of spans", cover, instance)

    cover(provider)
    patches.wrap(TracerProvider, "__init__", made)


def _make(found: Source) -> Any:
    def generate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        number = wrapped(*args, **kwargs)  # in a replay too: the generator may share its state with the program
        return read(found, lambda: number, None)

    return generate
