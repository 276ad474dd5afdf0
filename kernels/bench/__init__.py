"""Measurements of the kernels on a GPU, beside torch's own in the same run: `python kernels/bench/run.py`."""
