"""Installs a distribution for a test as pip would: files, `RECORD`, a console script."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def install(
    site: Path, name: str, files: Mapping[str, str], *, script: str = "", entry: str = "", requires: Iterable[str] = ()
) -> Path:
    """Install a distribution below `site`, named `site-packages` or on `sys.path`; return the console script.

    `files` maps paths below `site` to their texts; `entry` is the function that the script calls,
    `package.module:function`.
    """
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (info / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
    listed = [f"{path},," for path in (*files, f"{info.name}/METADATA", f"{info.name}/RECORD")]
    (info / "RECORD").write_text("\n".join(listed) + "\n", encoding="utf-8")
    program = site.parent / "bin" / script
    if script:
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{script} = {entry}\n", encoding="utf-8")
        module, _, function = entry.partition(":")
        program.parent.mkdir(exist_ok=True)
        lines = (f"#!{sys.executable}", "import sys", f"from {module} import {function}", f"sys.exit({function}())")
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        program.chmod(0o755)
    return program
