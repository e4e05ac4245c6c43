"""Bucket URL: the address of an object store and of the objects of one broker in it. Pure.

| URL | store |
|---|---|
| s3://BUCKET/PREFIX | Amazon S3 and all servers with its interface |
| gs://BUCKET/PREFIX | Google Cloud Storage |
| az://CONTAINER/PREFIX | Azure Blob Storage |
| file:///FOLDER/PREFIX | a folder, for example of a network file system |

A URL contains no credentials, because URLs appear in logs and in process lists. The libraries of
the clouds find credentials themselves, in the environment or in the machine's role.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError

SCHEMES: Final = ("s3", "gs", "az", "file")
PREFIX_CHARACTERS_MAX: Final = 500  # S3's limit of a key is 1,024 bytes; ZSQ's own names need 100
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}[a-z0-9]")
_PART: Final = re.compile(r"[A-Za-z0-9_=.-]+")


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """The parts of a bucket URL.

    `prefix` has no slash at its ends, and may be empty. For the scheme `file`, `bucket` is empty
    and `prefix` is the absolute path without its first slash.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}{f'/{self.prefix}' if self.prefix else ''}"

    @property
    def folder(self) -> str:
        """The path of a `file` URL."""
        assert self.scheme == "file"
        return f"/{self.prefix}"


def parse_bucket_url(text: str) -> BucketUrl:
    """Return the parts of the URL. Raises `UsageError` (E_BAD_ARGUMENT)."""
    scheme, mark, rest = text.partition("://")
    if "@" in text or "?" in text or ":" in rest.partition("/")[0]:
        # The text is not repeated, because it may contain a password.
        raise UsageError(
            E_BAD_ARGUMENT,
            "a bucket URL must contain no user, no password, no port and no ?: give credentials "
            "and the endpoint in the environment, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
        )
    if not mark or scheme not in SCHEMES:
        raise _wrong(text, "it must begin with s3://, gs://, az:// or file://")
    bucket, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if scheme == "file":
        if bucket:
            raise _wrong(text, "a file URL must have three slashes: file:///FOLDER")
        if not parts:
            raise _wrong(text, "it must name a folder")
    elif not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise _wrong(
            text,
            f"{bucket!r} is no name of a bucket: it must have 3 to 223 lower-case letters, digits, "
            "dots, hyphens and underscores",
        )
    for part in parts:
        if part in {".", ".."} or not _PART.fullmatch(part):
            raise _wrong(text, f"{part!r} may not be in a prefix: use letters, digits and _ - . =")
    prefix = "/".join(parts)
    if len(prefix) > PREFIX_CHARACTERS_MAX:
        raise _wrong(
            text, f"its prefix has {len(prefix)} characters; the limit is {PREFIX_CHARACTERS_MAX}"
        )
    return BucketUrl(scheme, bucket, prefix)


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, f"the bucket URL {text!r} is not valid: {why}")
