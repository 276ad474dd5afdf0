"""Points where calls cross a boundary: each file patches one library; `table.py` lists them."""
