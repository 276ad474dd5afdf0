"""The codec's table: one row per family of types; the first row that matches a type writes it."""

from __future__ import annotations

from typing import Final

from spanreplay.codec import _pandas, _pandas_arrays, _pandas_scalars, _polars
from spanreplay.codec._arrays import ARRAY, DTYPE, SCALAR
from spanreplay.codec._builtin import BUILTIN_ROWS
from spanreplay.codec._engine import Row, set_table
from spanreplay.codec._errors import EXCEPTION
from spanreplay.codec._models import PYDANTIC, PYDANTIC_V1, SECRET, URL
from spanreplay.codec._objects import ATTRS, CLASS, DATACLASS, ENUM, NAMEDTUPLE, SUBCLASS
from spanreplay.codec._pytz import PYTZ
from spanreplay.codec._validation import VALIDATION

ROWS: Final[tuple[Row, ...]] = (
    *BUILTIN_ROWS,
    SCALAR,  # before SUBCLASS: numpy.float64 is a float
    ARRAY,
    DTYPE,
    _pandas.FRAME,
    _pandas.SERIES,
    _pandas.INDEX,
    _pandas_arrays.ARRAY,
    _pandas_arrays.DTYPE,
    *_pandas_scalars.ROWS,
    _polars.FRAME,
    _polars.SERIES,
    PYTZ,
    VALIDATION,  # before EXCEPTION: it is a ValueError
    EXCEPTION,
    ENUM,
    PYDANTIC,
    PYDANTIC_V1,
    SECRET,
    URL,
    DATACLASS,
    ATTRS,
    NAMEDTUPLE,
    CLASS,
    SUBCLASS,
)
set_table(ROWS)
