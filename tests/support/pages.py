"""Runs the fenced blocks of a page of the documentation in order, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def run_page(page: str, folder: Path, **environment: str) -> list[str]:
    """Run all blocks of `docs/page` in `folder`, and return the output of each.

    Python blocks are programs of their own. Blocks that install something are left out.
    """
    text = (ROOT / "docs" / page).read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = []
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if "pip install" in code or kind not in ("python", "sh"):
            continue
        command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-ec", code]
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, f"{page}:\n{code}\n{ended.stdout}{ended.stderr}"
        said.append(ended.stdout)
    return said
