"""Bucket check of `zsq doctor`: whether an object store keeps the promises that ZSQ needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Final

from ...storage.bucket.bucket import BucketAway, BucketRefuses
from ...storage.bucket.bucket_url import BucketUrl, parse_bucket_url
from ...storage.bucket.object_store import ObstoreMissing, open_bucket, server_of
from ...storage.bucket.probe import LARGE_BYTES, BucketUnfit, probe
from ...storage.files import Files
from .system import OK, PROBLEM, CheckResult

WHAT: Final = "bucket"

checked = parse_bucket_url


def bucket(url: BucketUrl) -> Iterator[CheckResult]:
    """Try every promise on objects of the check's own."""
    server = server_of(url)
    text = f"{url}{f' ({server})' if server else ''}"
    try:
        with tempfile.NamedTemporaryFile(prefix="zsq-probe-") as large:
            large.write(os.urandom(LARGE_BYTES))
            large.flush()
            report = probe(open_bucket(url), Files(), large.name)
    except ObstoreMissing as error:
        yield CheckResult(PROBLEM, WHAT, str(error), "install it: pip install 'zsq[bucket]'")
    except BucketUnfit as error:
        advice = "use another store, or a newer version of this one"
        yield CheckResult(PROBLEM, WHAT, f"{text} is not fit: {error}", advice)
    except BucketRefuses as error:
        advice = (
            "check the credentials in the environment, and the permissions to create, read, list "
            "and remove objects"
        )
        yield CheckResult(PROBLEM, WHAT, f"{text} refused: {error}", advice)
    except BucketAway as error:
        advice = "check the network, the endpoint and the region in the environment"
        yield CheckResult(PROBLEM, WHAT, f"{text} did not answer: {error}", advice)
    else:
        times = f"written in {report.create_ms:.1f} ms, and read in {report.read_ms:.1f} ms"
        fit = f"{text} is fit: a small object is {times}; {report.requests} requests"
        yield CheckResult(OK, WHAT, fit)
