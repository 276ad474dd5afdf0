"""A table that native code writes, where nothing was before, and reads again."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def use():
    path = Path(os.environ["FOLDER"]) / "orders.parquet"
    pq.write_table(pa.table({"amount": [7, 8]}), path)
    return pq.read_table(path).num_rows
