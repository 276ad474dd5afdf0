"""Plug-ins that make inference engines use the kernels.

`transformers` imports its engine. `vllm` and `sglang` are the engines' entry points, and import nothing until they are
called by name; modules with an underscore subclass the engines' classes.
"""
