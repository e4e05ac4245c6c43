"""Tests of documents that were read from a broken file."""

from __future__ import annotations

import pytest

from zsq.storage import documents


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"{", b"\xff"])
def test_bytes_that_are_no_document_raise_a_value_error(data: bytes) -> None:
    """Even a very deep document raises no `RecursionError`, which readers of files do not
    expect.
    """
    with pytest.raises(ValueError):
        documents.loads(data)


def test_documents_are_read() -> None:
    assert documents.loads(b'{"a": [1]}') == {"a": [1]}
