"""Read YAML of a stranger: plain values only, within limits, with the line of whatever is refused.

A cassette is parsed twice. (1) The first pass looks at the events alone: how deep the document is, and how large it
becomes once its aliases are resolved, because a few lines of aliases can stand for gigabytes. (2) Only then are values
built, by PyYAML's safe constructor. Tags for Python objects are refused, except those that older versions of vcrpy
wrote for plain values: their content is read, and nothing of Python is called.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay.model.errors import ConfigError, ForeignFile
from spanreplay.model.how_to_install import install_command

__all__ = ["DEPTH_MAX", "EXPANDED_MAX", "Lines", "load_yaml"]

DEPTH_MAX: Final = 100
EXPANDED_MAX: Final = 512 * 1024 * 1024
"""Characters of a document whose aliases are resolved; a node counts NODE_CHARACTERS more."""
NODE_CHARACTERS: Final = 64
_PYTHON: Final = "tag:yaml.org,2002:python/"
_TEXTS: Final = ("unicode", "str", "bytes")
_NUMBERS: Final = ("int", "long")
_LISTS: Final = ("list", "tuple")
_FILE: Final = "object/new:_io.BytesIO"
"""The body of an upload: its state is [content, position, attributes]."""
_DATE: Final = "tag:yaml.org,2002:timestamp"

Lines = dict[str, list[int]]
"""Name of a list at the document's root → the line of each of its items."""


def load_yaml(data: bytes, name: str) -> tuple[Any, Lines]:
    """The document's value and the lines of its lists. Raises: ForeignFile; ConfigError if PyYAML is missing."""
    yaml = _import_yaml()
    try:
        lines = _check(yaml, data, name)  # (1)
        return yaml.load(data, Loader=_make_loader(yaml)), lines  # (2)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise ForeignFile(f"{where}: {exc.problem or exc.context or 'not YAML'}", hint=_HINT) from exc
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise ForeignFile(f"{name} is not YAML: {str(exc).splitlines()[0] if str(exc) else exc!r}", hint=_HINT) from exc


_HINT: Final = "a cassette holds plain values: texts, numbers, lists, mappings"


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError as exc:
        raise ConfigError(
            "cassettes in YAML need PyYAML, which is not installed", hint=install_command("cassettes")
        ) from exc
    return yaml


def _check(yaml: Any, data: bytes, name: str) -> Lines:
    """Look at the events of a document. Raises: ForeignFile if it is too deep or too large, or contains itself."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str, int]] = []
    """(anchor, characters so far) of each collection that has not ended."""
    lines: Lines = {}
    key, total, documents = "", 0, 0
    for event in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        size, anchor = 0, getattr(event, "anchor", None) or ""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ForeignFile(f"{name}:{line}: a second document begins here", hint="a cassette is one document")
        elif isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                raise ForeignFile(f"{name}:{line}: the alias *{anchor} refers to itself or to nothing", hint=_HINT)
            size = sizes[anchor]
        elif isinstance(event, yaml.ScalarEvent):
            size = NODE_CHARACTERS + len(event.value)
            if anchor:
                sizes[anchor] = size
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((anchor, 0))
            size = NODE_CHARACTERS
            if len(open_nodes) > DEPTH_MAX:
                raise ForeignFile(f"{name}:{line}: nested deeper than {DEPTH_MAX} levels", hint=_HINT)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended, inner = open_nodes.pop()
            if ended:
                sizes[ended] = inner
            if open_nodes:
                open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] + inner)
            continue
        else:
            continue
        total += size
        if open_nodes:
            open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] + size)
        if total > EXPANDED_MAX:
            raise ForeignFile(
                f"{name}:{line}: with its aliases resolved, the document exceeds {EXPANDED_MAX} characters", hint=_HINT
            )
        depth, is_collection = len(open_nodes), isinstance(event, yaml.CollectionStartEvent)
        if depth == 1 and isinstance(event, yaml.ScalarEvent):
            key = event.value  # or a value, which no list follows
        elif depth == (3 if is_collection else 2):
            lines.setdefault(key, []).append(line)
    return lines


def _make_loader(yaml: Any) -> Any:
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]  # chosen when PyYAML is imported
        """The safe loader, with the plain values of older cassettes, and without dates."""

    def construct(loader: Any, suffix: str, node: Any) -> Any:
        if suffix in _TEXTS and isinstance(node, yaml.ScalarNode):
            return loader.construct_scalar(node)
        if suffix in _NUMBERS and isinstance(node, yaml.ScalarNode):
            return int(loader.construct_scalar(node))
        if suffix in _LISTS and isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        if suffix == _FILE and isinstance(node, yaml.MappingNode):
            state = loader.construct_mapping(node, deep=True).get("state")
            if isinstance(state, list) and state and isinstance(state[0], bytes):
                return state[0]
        raise yaml.constructor.ConstructorError(
            None, None, f"a Python object (!!python/{suffix}) is not loaded: it could run code", node.start_mark
        )

    Loader.add_multi_constructor(_PYTHON, construct)
    Loader.add_constructor(_DATE, lambda loader, node: loader.construct_scalar(node))
    return Loader
