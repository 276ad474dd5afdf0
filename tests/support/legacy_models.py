"""A model of pydantic 1, importable where pydantic.v1 is."""

from __future__ import annotations

from typing import Any

from pydantic.v1 import BaseModel, PrivateAttr


class Old(BaseModel):
    """A pydantic 1 model."""

    name: str
    order: Any = None
    _count: int = PrivateAttr(default=0)
