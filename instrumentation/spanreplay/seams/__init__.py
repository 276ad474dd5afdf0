"""Where calls cross a boundary: each file patches one library, `_table.py` lists them."""
