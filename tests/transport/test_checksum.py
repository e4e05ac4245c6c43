"""Test of the checksum: it is CRC-32C, and its import loads nothing that it does not need."""

import subprocess
import sys

PROGRAM = """
import sys
from zsq.transport.checksum import crc32c
print(hex(crc32c(b"123456789")), sorted({"argparse", "importlib.metadata"} & sys.modules.keys()))
"""


def test_the_checksum_is_loaded_without_the_rest_of_its_package() -> None:
    line = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(line, capture_output=True, check=True).stdout
    assert output == b"0xe3069283 []\n"


def test_a_package_with_other_modules_is_used_as_a_whole() -> None:
    program = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "_crc32c" else find(name, *rest)
from zsq.transport.checksum import crc32c
import sys
assert "crc32c" in sys.modules
print(crc32c(b"123456789"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 0xE3069283
