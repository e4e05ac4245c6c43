"""Object store: a bucket of a cloud or of a server with S3's interface, through obstore.

obstore is the Python interface of Rust's object_store: one library for all clouds, without other
dependencies, whose calls release the GIL. Rejected: the clouds' own libraries, because there are
three of them, and boto3 alone is larger than ZSQ. Only this module imports obstore, and only when a
bucket is opened.

The settings come from the environment, by the names of each cloud: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY. Without them, the machine's role counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from ..errors import StorageError
from ..files import Files
from .bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefuses,
    BucketUnfit,
    Bytes,
    ObjectExists,
    ObjectMissing,
)
from .bucket_url import BucketUrl
from .folder_bucket import FolderBucket

CONNECT_S: Final = 5.0
CALL_S: Final = 30.0
RETRIES_MAX: Final = 3
RETRY_S: Final = 10.0
# S3's smallest part is 5 MiB. Two parts at a time keep the memory of an upload at 16 MiB.
PART_BYTES: Final = 8 * 1024 * 1024
PARTS_AT_ONCE: Final = 2
ERROR_CHARACTERS_MAX: Final = 300
SERVER_S: Final = 3.0
# Without credentials in the environment, the library asks the cloud's machine for its role.
METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
NO_CREDENTIALS: Final = (
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_APPLICATION_CREDENTIALS, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, "
    "or give the machine a role"
)
_NON_PARTIAL: Final = "non-partial response"  # the answer to a range was the whole object
# Answers that the same request gets again. 408 and 429 are not among them.
_REFUSED: Final = re.compile(r"non-2xx status code: 4(?!08|29)\d\d")
_USER: Final = re.compile(r"//[^/@\s]*@")
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(/\S*)?")
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")
_XML_CODE: Final = re.compile(r"<Code>([^<]{1,80})</Code>")


class ObstoreMissing(StorageError):
    """The extra `zsq[bucket]` is not installed."""


class ObjectStore:
    """A bucket through obstore. `open_bucket` makes it."""

    def __init__(self, url: BucketUrl, library: Any, store: Any) -> None:
        self.url = url
        self._library = library
        self._store = store
        errors = library.exceptions
        self._kinds: tuple[tuple[Any, type[BucketError]], ...] = (
            ((errors.AlreadyExistsError, errors.PreconditionError), ObjectExists),
            ((errors.NotFoundError, FileNotFoundError), ObjectMissing),
            (
                (
                    errors.PermissionDeniedError,
                    errors.UnauthenticatedError,
                    errors.NotSupportedError,
                    errors.InvalidPathError,
                ),
                BucketRefuses,
            ),
            (Exception, BucketAway),
        )

    def create(self, name: str, data: Bytes) -> None:
        with self._failing(name, writes=True):
            self._library.put(self._store, name, data, mode="create", use_multipart=False)

    def upload(self, name: str, path: str) -> None:
        files = Files()
        files.close(files.open_read(path))  # a missing file is not an error of the bucket
        with self._failing(name, writes=True):
            self._library.put(
                self._store,
                name,
                Path(path),
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None and not start:
            with self._failing(name):
                return bytes(self._library.get(self._store, name).bytes())
        # Stores refuse a range that begins at the end of the object or behind it.
        end = self.size(name) if length is None else start + length
        if end <= start:
            return b""
        try:
            with self._failing(name):
                return bytes(self._library.get_range(self._store, name, start=start, end=end))
        except (BucketAway, BucketRefuses):
            if start >= self.size(name):
                return b""
            raise

    def size(self, name: str) -> int:
        with self._failing(name):
            return int(self._library.head(self._store, name)["size"])

    def copy(self, source: str, target: str) -> None:
        """Let the store copy an object to another name. One of that name is replaced."""
        with self._failing(source):
            self._library.copy(self._store, source, target)

    def names(self, below: str) -> Iterator[str]:
        assert below.endswith("/")
        with self._failing(below):
            for page in self._library.list(self._store, prefix=below):
                for row in page:
                    yield str(row["path"])

    def remove(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            with self._failing(names[0]):
                self._library.delete(self._store, list(names))
        except BucketError:
            self._remove_each(names)

    def _remove_each(self, names: Sequence[str]) -> None:
        """Remove one by one, because the library stops at the first failure.

        For some stores a name without an object is such a failure.
        """
        failures: list[BucketError] = []
        for name in names:
            try:
                with self._failing(name):
                    self._library.delete(self._store, name)
            except ObjectMissing:
                continue
            except BucketError as error:
                failures.append(error)
                if isinstance(error, (BucketAway, BucketRefuses)):
                    break  # the others would only take as long
        if failures:
            raise failures[0]

    def remove_folder(self, below: str) -> None:
        """Do nothing: an object store has no folders."""

    @contextlib.contextmanager
    def _failing(self, name: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # The library raises Python's own classes for some failures. A failure of its own is a
            # PanicException, which no `except Exception` catches.
            panics = type(error).__name__ == "PanicException"
            if not panics and not isinstance(error, Exception):
                raise
            raise self._kind_of(error, writes, panics=panics)(
                f"{self.url}/{name}: {_short(str(error))}"
            ) from None

    def _kind_of(self, error: BaseException, writes: bool, *, panics: bool) -> type[BucketError]:
        text = str(error)
        if panics or any(address in text for address in METADATA):
            return BucketRefuses
        kind = next(kind for classes, kind in self._kinds if isinstance(error, classes))
        if kind is ObjectMissing and writes:
            return BucketRefuses  # the bucket itself is missing
        if kind is BucketAway and _NON_PARTIAL in text:
            return BucketUnfit
        if kind is BucketAway and _REFUSED.search(text):
            return BucketRefuses
        return kind


def _short(text: str) -> str:
    """Return the first line of the library's text, with the code of the server's answer."""
    if any(address in text for address in METADATA):
        return NO_CREDENTIALS
    text = _USER.sub("//", text)
    match = _XML_CODE.search(text)
    first = text.split("\n", 1)[0]
    first = first.partition(": <?xml")[0]
    code = f" ({match.group(1)})" if match else ""
    return first[:ERROR_CHARACTERS_MAX] + code


def endpoint_of(url: BucketUrl) -> str:
    """Return the endpoint that the environment names for this store, or "".

    Raises `BucketRefuses` if it is not valid. The library would end with a panic.
    """
    name = next((name for name in ENDPOINTS if os.environ.get(name)), "")
    if url.scheme != "s3" or not name:
        return ""
    endpoint = os.environ[name]
    if not _ENDPOINT.fullmatch(endpoint):
        # The text is not repeated, because it may contain a password.
        raise BucketRefuses(
            f"{url}: {name} must be http://HOST:PORT or https://HOST, without user and password"
        )
    return endpoint


def open_bucket(url: BucketUrl, *, call_s: float = CALL_S) -> Bucket:
    """Open a bucket. Nothing is sent. A call fails after about `call_s` seconds without an answer.

    Raises `BucketRefuses` if the environment has wrong settings, and `ObstoreMissing`.
    """
    if url.scheme == "file":
        return FolderBucket(Files(), url)
    try:
        import obstore
        from obstore import store as stores
    except ImportError as error:
        raise ObstoreMissing(
            f"{url.scheme}:// needs obstore ({error}): pip install 'zsq[bucket]'"
        ) from None
    retry = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=min(RETRY_S, call_s)),
    }
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=call_s),
        "connect_timeout": timedelta(seconds=min(CONNECT_S, call_s)),
    }
    if endpoint_of(url).startswith("http://"):
        client["allow_http"] = True  # the operator named a server without TLS
    common = {"prefix": url.prefix or None, "client_options": client, "retry_config": retry}
    classes = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    try:
        store: Any = classes[url.scheme](url.bucket, **common)
    except Exception as error:  # the library raises several classes for wrong settings
        raise BucketRefuses(f"{url}: {_short(str(error))}") from None
    return ObjectStore(url, obstore, store)


def server_of(url: BucketUrl) -> str:
    """Return how the server of an S3 endpoint names itself, or ""."""
    endpoint = endpoint_of(url)
    if not endpoint:
        return {"s3": "Amazon S3", "gs": "Google Cloud Storage", "az": "Azure"}.get(url.scheme, "")
    try:
        with urllib.request.urlopen(endpoint, timeout=SERVER_S) as reply:
            return str(reply.headers.get("Server", ""))
    except (
        urllib.error.HTTPError
    ) as error:  # most servers refuse this request, and say who they are
        return str(error.headers.get("Server", ""))
    except (OSError, ValueError, HTTPException):
        return ""
