#!/usr/bin/env python3
"""Generate the calls of the clients: `python scripts/clients.py [--check]`.

Each public function of `transport/client/core/administration.py` is a call of Admin. Its signature
and docstring become a method of the blocking Admin, and one of the asyncio Admin, so that editors
and type checkers see the whole of both. With `--check`, nothing is written, and the exit code is 1
if a file is not current.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).resolve().parents[1] / "transport" / "client"
SOURCE: Final = CLIENT / "core" / "administration.py"
HEAD: Final = '''"""Calls of the {kind} Admin. `scripts/clients.py` generates them from `core/administration.py`."""

from __future__ import annotations

'''
BLOCKING: Final = CLIENT / "blocking" / "admin_calls.py"
ASYNCIO: Final = CLIENT / "asyncio" / "aio_admin_calls.py"


def calls() -> list[ast.FunctionDef]:
    """Return the public functions of the source."""
    return [
        node
        for node in ast.parse(SOURCE.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def generated(path: Path) -> str:
    """Return the text of a generated file."""
    is_asyncio = path == ASYNCIO
    functions = calls()
    asker = "from .aio_asker import Asker" if is_asyncio else "from .asker import Asker"
    text = HEAD.format(kind="asyncio" if is_asyncio else "blocking")
    text += "\n".join([*_imports(functions), "from ..core import administration", asker])
    text += '\n\n\nclass AdminCalls(Asker):\n    """Methods that ask the supervisor."""\n'
    text += "".join(_method(function, is_asyncio=is_asyncio) for function in functions)
    for command in (["check", "--select=I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _imports(functions: list[ast.FunctionDef]) -> list[str]:
    """Return the imports of the source that the signatures need."""
    used = {
        node.id
        for function in functions
        for part in (function.args, function.returns)
        if part is not None
        for node in ast.walk(part)
        if isinstance(node, ast.Name)
    } - {"Asking"}
    lines = []
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = [alias.name for alias in node.names if alias.name in used]
            # The source lies in a sibling folder of the generated files.
            dots, where = ("..", "core.") if node.level == 1 else ("." * node.level, "")
            if names:
                lines.append(f"from {dots}{where}{node.module} import {', '.join(names)}")
    return lines


def _method(function: ast.FunctionDef, *, is_asyncio: bool) -> str:
    """Return the method for a call: its signature, its docstring, and one line."""
    arguments = function.args
    passed = [argument.arg for argument in arguments.args]
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    parameters = ast.unparse(arguments)
    returns = function.returns
    assert isinstance(returns, ast.Subscript), f"{function.name} must return Asking[...]"
    answer = ast.unparse(returns.slice)
    run = f"self._carry_out(administration.{function.name}({', '.join(passed)}))"
    run = f"await {run}" if is_asyncio else run
    docstring = SOURCE.read_text().splitlines()[
        function.body[0].lineno - 1 : function.body[0].end_lineno
    ]
    head = f"{'async ' if is_asyncio else ''}def {function.name}"
    return "\n".join(
        [
            "",
            f"    {head}(self{', ' if parameters else ''}{parameters}) -> {answer}:",
            *(f"    {line}".rstrip() for line in docstring),
            f"        {run if answer == 'None' else f'return {run}'}",
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    stale = 0
    for path in (BLOCKING, ASYNCIO):
        text = generated(path)
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not current: run python scripts/clients.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
