"""Layers between a socket and NSQ's protocol after IDENTIFY: TLS, deflate, snappy.

A layer never returns more than about PIECE bytes of plain text at a time. A megabyte of deflate may
contain a gigabyte of plain text (a compression bomb). A limit for the compression ratio cannot
detect a bomb, because a valid message of zeros has the same ratio. Instead, the rest waits in
compressed form, and `held` is True. The caller passes a piece on, lets the event loop turn once,
checks whether its session still wants to read, and calls `receive(b"")` again. During that time it
reads nothing from the socket. So a bomb slows only its sender's connection. It takes no memory, and
does not delay other connections. Input that contains no plain text is limited in the same way:
`receive` processes at most PARTS_PIECE TLS records or snappy chunks.

Details follow nsqd. Deflate is raw (no zlib header, window of 15 bits), and each `send` ends with a
sync flush. Snappy uses the framing format. Nothing here does I/O.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
import zlib
from typing import Final, Protocol

from ..checksum import crc32c

# The limit for plain bytes from one `receive`. It may be exceeded by one snappy block. A read from
# a socket returns at most the same number of bytes.
PIECE: Final = 65_536
PARTS_PIECE: Final = 256  # the most TLS records or snappy chunks that one `receive` processes
DEFLATE_LEVELS: Final = range(1, 10)

_READ: Final = 65_536


class LayerError(Exception):
    """The other side sent invalid bytes. Only the bytes from `take_out` can still be sent."""


class Layer(Protocol):
    cost: int  # approximate memory of the layer, in bytes

    @property
    def kept(self) -> int: ...  # packed bytes that wait in the layer

    @property
    def held(self) -> bool: ...  # True if `receive(b"")` returns more

    def receive(self, data: bytes) -> bytes: ...

    def send(self, data: bytes) -> bytes: ...


class Layers:
    """Layers on top of each other, the first one nearest to the socket.

    Without layers, bytes pass unchanged.
    """

    def __init__(self) -> None:
        self._layers: list[Layer] = []
        self.tls: TlsLayer | None = None

    def push(self, layer: Layer) -> None:
        if isinstance(layer, TlsLayer):
            assert not self._layers, "TLS lies below compression"
            self.tls = layer
        self._layers.append(layer)

    @property
    def held(self) -> bool:
        return any(layer.held for layer in self._layers)

    @property
    def kept(self) -> int:
        """The packed bytes that wait in the layers."""
        return sum(layer.kept for layer in self._layers)

    @property
    def cost(self) -> int:
        """The approximate memory of the layers, in bytes."""
        return sum(layer.cost for layer in self._layers)

    def receive(self, data: bytes) -> bytes:
        for layer in self._layers:
            data = layer.receive(data)
        return data

    def send(self, data: bytes) -> bytes:
        for layer in reversed(self._layers):
            data = layer.send(data)
        return data

    def take_out(self) -> bytes:
        """Return bytes of TLS that must be written: its handshake, alerts and tickets.

        Call this after each `receive`, even if it failed.
        """
        return self.tls.take_out() if self.tls is not None else b""

    def close(self) -> bytes:
        """Return the last bytes.

        Only TLS marks the end of the connection. Compression in NSQ does not.
        """
        return self.tls.close() if self.tls is not None else b""


class TlsLayer:
    """The server's side of TLS.

    Until `ready`, `receive` returns nothing, and only `take_out` has bytes to write.
    """

    cost = 32 * 1024

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.ready = False
        self.held = False  # True if there are more records than one `receive` processes

    @property
    def kept(self) -> int:
        return self._incoming.pending

    def receive(self, data: bytes) -> bytes:
        self._incoming.write(data)
        try:
            if not self.ready:
                self._tls.do_handshake()
                self.ready = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {error.reason or error}") from None

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        self.held = False
        try:
            while self._incoming.pending or self._tls.pending():
                if len(pieces) == PARTS_PIECE:
                    self.held = True
                    break
                piece = self._tls.read(_READ)
                if not piece:
                    break
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> bytes:
        assert self.ready, "nothing is sent through TLS before its handshake is done"
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]  # `write` takes one TLS record at a time
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {error.reason or error}") from None
        return self._outgoing.read()

    def take_out(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        if self.ready:
            # `unwrap` writes the end of TLS. It then raises an error, because the other side has
            # not replied yet. The reply is not needed.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        return self.take_out()

    # Facts about the client, for the auth server and for statistics

    @property
    def version(self) -> str:
        """The version as OpenSSL names it: TLSv1.2, TLSv1.3."""
        return self._tls.version() or ""

    @property
    def cipher(self) -> str:
        suite = self._tls.cipher()
        return suite[0] if suite else ""

    @property
    def common_name(self) -> str:
        """The name in the client's certificate that the context has verified, or empty."""
        subject = (self._tls.getpeercert() or {}).get("subject", ())
        names = [pair[1] for part in subject for pair in part if pair[0] == "commonName"]
        return str(names[-1]) if names else ""


class DeflateLayer:
    # This is the memory if little was sent to the client. If much was sent, it is up to 300 KiB.
    cost = 128 * 1024

    def __init__(self, level: int) -> None:
        if level not in DEFLATE_LEVELS:
            raise ValueError(f"deflate level must be 1 to 9, not {level}")
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        self._rest = b""
        self._full = False
        self._ended = False  # the other side ended the stream

    @property
    def kept(self) -> int:
        return len(self._rest)

    @property
    def held(self) -> bool:
        return not self._ended and (self._full or bool(self._rest))

    def receive(self, data: bytes) -> bytes:
        if self._ended:
            return b""
        packed = self._rest + data if self._rest else data
        try:
            plain = self._unpacker.decompress(packed, PIECE)
        except zlib.error as error:
            raise LayerError(f"deflate: {error}") from None
        self._rest = self._unpacker.unconsumed_tail
        # Zlib may hold more plain text although it has consumed all input.
        self._full = len(plain) == PIECE
        self._ended = self._unpacker.eof
        return plain

    def send(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)


# Snappy: a stream consists of chunks, each `type (1) | length (3, little-endian) | data`. The data
# of types 0 and 1 begins with a masked CRC-32C.

_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPED: Final = range(0x80, 0xFF)  # chunks of these types are skipped; 0xFE is padding
_STREAM: Final = 0xFF
_STREAM_CHUNK: Final = b"\xff\x06\x00\x00sNaPpY"
_BLOCK: Final = 65_536  # the largest number of plain bytes in a chunk
# Chunks to clients are smaller, so that each chunk with its head fits into one TLS record. If a
# read completes no chunk, pynsq assumes the end of the connection. The chunks of nsqd are small
# too, because of its output buffer.
_BLOCK_OUT: Final = 16_384 - 8
_CHUNK_MAX: Final = 4 + 32 + _BLOCK + _BLOCK // 6  # the largest size of _BLOCK packed bytes
_HEAD: Final = struct.Struct("<I")
_CRC: Final = struct.Struct("<I")


def _masked(data: bytes | memoryview) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def snappy_is_here() -> bool:
    """Return True if the package for snappy is installed.

    A gateway without it works, and its reply to IDENTIFY does not offer snappy.
    """
    try:
        import cramjam  # noqa: F401
    except ImportError:
        return False
    return True


class SnappyLayer:
    cost = 1024

    def __init__(self) -> None:
        from cramjam import snappy

        self._pack = snappy.compress_raw
        self._unpack = snappy.decompress_raw
        self._unpacked_size = snappy.decompress_raw_len
        self._rest = b""
        self._skip = 0
        self._begun_in = False
        self._begun_out = False
        self.held = False

    @property
    def kept(self) -> int:
        return len(self._rest)

    def receive(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        view = memoryview(data)
        pieces: list[bytes] = []
        returned, parts, at, end = 0, 0, 0, len(data)
        self.held = False
        while end - at >= 4 or self._skip:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
                if self._skip:
                    break
                continue
            if returned >= PIECE or parts == PARTS_PIECE:
                self.held = True
                break
            parts += 1
            word = _HEAD.unpack_from(data, at)[0]
            kind, size = word & 0xFF, word >> 8
            if kind in _SKIPPED and self._begun_in:
                self._skip = size  # the bytes are skipped as they arrive
                at += 4
                continue
            self._check(kind, size)
            if end - at - 4 < size:
                break
            piece = self._chunk(kind, view[at + 4 : at + 4 + size])
            returned += len(piece)
            pieces.append(piece)
            at += 4 + size
        self._rest = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check(self, kind: int, size: int) -> None:
        """Check the head of a chunk before its bytes are collected."""
        if kind == _STREAM:
            if size != 6:
                raise LayerError(f"snappy: the stream identifier is {size} bytes; it must be 6")
        elif not self._begun_in:
            raise LayerError("snappy: the stream does not begin with a stream identifier")
        elif kind not in {_COMPRESSED, _PLAIN}:
            raise LayerError(f"snappy: chunk type {kind:#04x} is reserved")
        else:
            size_max = _CHUNK_MAX if kind == _COMPRESSED else 4 + _BLOCK
            if not 4 <= size <= size_max:
                raise LayerError(f"snappy: a chunk has {size} bytes; it must have 4 to {size_max}")

    def _chunk(self, kind: int, chunk: memoryview) -> bytes:
        if kind == _STREAM:
            if chunk != _STREAM_CHUNK[4:]:
                raise LayerError("snappy: the stream identifier is not sNaPpY")
            self._begun_in = True
            return b""
        packed = bytes(chunk[4:])
        plain = packed if kind == _PLAIN else self._unpacked(packed)
        if _CRC.unpack_from(chunk)[0] != _masked(plain):
            raise LayerError("snappy: the checksum of a chunk does not match")
        return plain

    def _unpacked(self, packed: bytes) -> bytes:
        try:
            size = self._unpacked_size(packed)
            if size > _BLOCK:
                raise LayerError(
                    f"snappy: a chunk decompresses to {size} bytes; the limit is {_BLOCK}"
                )
            return bytes(self._unpack(packed))
        except LayerError:
            raise
        except Exception as error:  # the package raises several subclasses of Exception
            raise LayerError(f"{error}") from None

    def send(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        if not self._begun_out:
            self._begun_out = True
            pieces.append(_STREAM_CHUNK)
        view = memoryview(data)
        for at in range(0, len(data), _BLOCK_OUT):
            plain = view[at : at + _BLOCK_OUT]
            packed = bytes(self._pack(plain))
            kind: int
            body: bytes | memoryview
            if len(packed) < len(plain) - len(plain) // 8:
                kind, body = _COMPRESSED, packed
            else:  # packing saves at most an eighth; a plain chunk is faster to read
                kind, body = _PLAIN, plain
            pieces += (
                _HEAD.pack(kind | (len(body) + 4) << 8),
                _CRC.pack(_masked(plain)),
                bytes(body),
            )
        return b"".join(pieces)
