"""Keys as text: Z85 (ZeroMQ's RFC 32), five characters for four bytes. Pure."""

from __future__ import annotations

from typing import Final

KEY_BYTES: Final = 32
KEY_CHARS: Final = 40
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
assert len(_ALPHABET) == 85
assert KEY_CHARS * 4 == KEY_BYTES * 5


def encode_key(key: bytes) -> str:
    """Of 32 bytes; `ValueError` for others."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    found = []
    for start in range(0, KEY_BYTES, 4):
        value = int.from_bytes(key[start : start + 4])
        found += [_ALPHABET[value // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(found)


def is_key(text: str) -> bool:
    """Whether this writes 32 bytes."""
    if len(text) != KEY_CHARS or any(character not in _VALUES for character in text):
        return False
    for start in range(0, KEY_CHARS, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * 85 + _VALUES[character]
        if value >= 1 << 32:
            return False
    return True
