"""Test that the examples of HACKING.md work as they are written.

Each example is a change of ZSQ as a patch, with the commands that show what it does. The patch is
applied to a copy of the package, and the commands run that copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .walking import ROOT, Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLES: Final = {
    section.split("\n", 1)[0]: section
    for section in re.split(r"^## ", (ROOT / "HACKING.md").read_text(), flags=re.MULTILINE)
    if section.startswith("Example: ")
}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_change_of_an_example_works(example: str, reader: Reader) -> None:
    page = reader.folder / "HACKING.md"
    page.write_text(EXAMPLES[example])
    assert reader.walk(page) >= 2, "an example has a patch and a command"
