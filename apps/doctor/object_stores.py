"""Bucket check of `zsq doctor`: whether an object store keeps the promises that ZSQ needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Final

from ...storage.bucket.bucket import BucketError, BucketRefuses, BucketUnfit
from ...storage.bucket.bucket_url import BucketUrl, parse_bucket_url
from ...storage.bucket.object_store import ObstoreMissing, open_bucket, server_of
from ...storage.bucket.probe import LARGE_BYTES, WRITERS_OF_DOCTOR, ProbeReport, probe
from ...storage.files import Files
from .system import OK, PROBLEM, CheckResult

WHAT: Final = "bucket"
CALL_S: Final = 10.0

checked = parse_bucket_url


def bucket(url: BucketUrl) -> Iterator[CheckResult]:
    """Try every promise that ZSQ needs on objects of the check itself."""
    try:
        report = _report(url)
    except ObstoreMissing as error:
        yield CheckResult(PROBLEM, WHAT, str(error), "install it: pip install 'zsq[bucket]'")
    except BucketUnfit as error:
        server = server_of(url)
        text = f"not fit{f' ({server})' if server else ''}: {error}"
        yield CheckResult(PROBLEM, WHAT, text, "use another store, or a newer version of this one")
    except BucketError as error:
        yield CheckResult(PROBLEM, WHAT, f"the check failed: {error}", _advice(url, error))
    except OSError as error:
        advice = f"the check needs {LARGE_BYTES >> 20} MiB in {tempfile.gettempdir()}"
        yield CheckResult(PROBLEM, WHAT, f"no temporary file: {error.strerror or error}", advice)
    else:
        server = server_of(url)
        times = f"written in {report.create_ms:.1f} ms, and read in {report.read_ms:.1f} ms"
        text = f"{url}{f' ({server})' if server else ''} is fit: a small object is {times}"
        yield CheckResult(OK, WHAT, text)


def _report(url: BucketUrl) -> ProbeReport:
    with tempfile.NamedTemporaryFile(prefix="zsq-probe-") as large:
        large.write(os.urandom(LARGE_BYTES))
        large.flush()
        opened = open_bucket(url, call_s=CALL_S)
        return probe(opened, Files(), large.name, writers=WRITERS_OF_DOCTOR)


def _advice(url: BucketUrl, error: BucketError) -> str:
    if url.scheme == "file":
        return "check the folder, its permissions and its file system"
    if isinstance(error, BucketRefuses):
        return (
            "check that the bucket exists, the settings in the environment, and the permissions to "
            "create, read, list and remove objects"
        )
    return "check the network, the endpoint and the region in the environment"
