"""Checksum: CRC-32C of bytes, as the package `crc32c` computes it.

This loads only the extension module of the package. The package itself also imports argparse and
importlib.metadata, with forty more modules, to know its own version. All of them together take
longer than the imports of a client.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:

    def _extension() -> Any:
        package = find_spec("crc32c")
        spec = PathFinder.find_spec("_crc32c", package.submodule_search_locations)
        if spec is None:  # another version of the package may have other modules
            import crc32c

            return crc32c
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension

    crc32c = _extension().crc32c
