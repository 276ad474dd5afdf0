"""What plugs the kernels into an engine.

`transformers` imports its engine. `vllm` and `sglang` are entry points of theirs, and import nothing until they are
called by name; modules with an underscore subclass what an engine brings.
"""
