"""Applies Kubernetes patches like its API server: JSON merge, and strategic merge with the merge keys of lists."""

from __future__ import annotations

from typing import Any, Final

MERGE_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"),
    "volumeMounts": ("mountPath",),
    "topologySpreadConstraints": ("topologyKey",),
}
"""Lists that are merged element by element, and their merge keys; every other list is replaced."""


def merge(target: dict[str, Any], patch: dict[str, Any], *, is_strategic: bool) -> None:
    """Apply a patch in place."""
    for name, value in patch.items():
        if is_strategic and name.startswith("$"):
            if not name.startswith(("$setElementOrder/", "$retainKeys")):
                raise NotImplementedError(name)
            continue
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            below = target.get(name)
            if not isinstance(below, dict):
                below = target[name] = {}
            merge(below, value, is_strategic=is_strategic)
        elif is_strategic and name in MERGE_KEYS and isinstance(value, list):
            order = patch.get(f"$setElementOrder/{name}")
            target[name] = _merge_list(target.get(name) or [], value, order, MERGE_KEYS[name])
        else:
            target[name] = value
    if is_strategic and isinstance(patch.get("$retainKeys"), list):
        for name in target.keys() - set(patch["$retainKeys"]):
            del target[name]


def _identity(element: dict[str, Any], keys: tuple[str, ...]) -> object:
    return next(element[key] for key in keys if key in element)


def _merge_list(
    old: list[dict[str, Any]], patch: list[dict[str, Any]], order: list[dict[str, Any]] | None, keys: tuple[str, ...]
) -> list[dict[str, Any]]:
    merged = {_identity(element, keys): element for element in old}
    for element in patch:
        place = _identity(element, keys)
        if element.get("$patch") == "delete":
            merged.pop(place, None)
        else:
            merge(merged.setdefault(place, {}), element, is_strategic=True)
    if order is not None:
        places = [_identity(element, keys) for element in order]
        return [merged[place] for place in places if place in merged]
    return list(merged.values())
