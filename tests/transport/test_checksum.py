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
