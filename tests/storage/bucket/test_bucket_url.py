"""Tests of bucket URLs: what is accepted, and that an error says what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.bucket.bucket_url import BucketUrl, parse_bucket_url
from zsq.transport.errors import UsageError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://events/broker-1", BucketUrl("s3", "events", "broker-1")),
        ("s3://events", BucketUrl("s3", "events", "")),
        ("s3://events/", BucketUrl("s3", "events", "")),
        ("s3://events//a///b/", BucketUrl("s3", "events", "a/b")),
        ("gs://my.bucket_1/a/b", BucketUrl("gs", "my.bucket_1", "a/b")),
        ("az://container/zone=eu", BucketUrl("az", "container", "zone=eu")),
        ("file:///mnt/nfs/zsq", BucketUrl("file", "", "mnt/nfs/zsq")),
    ],
)
def test_a_url_has_scheme_bucket_and_prefix(text: str, url: BucketUrl) -> None:
    assert parse_bucket_url(text) == url
    assert parse_bucket_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must begin with s3://"),
        ("events/broker", "must begin with s3://"),
        ("http://events/x", "must begin with s3://"),
        ("S3://events", "must begin with s3://"),
        ("s3://", "no name of a bucket"),
        ("s3:///prefix", "no name of a bucket"),
        ("s3://Events", "no name of a bucket"),
        ("s3://ab", "no name of a bucket"),
        ("s3://events#a", "no name of a bucket"),
        ("s3://ab..cd", "no name of a bucket"),
        ("s3://events/a/../b", "'..' may not be in a prefix"),
        ("s3://events/a b", "'a b' may not be in a prefix"),
        ("s3://events/ä", "may not be in a prefix"),
        ("s3://events/" + "a" * 501, "501 characters; the limit is 500"),
        ("file://mnt/nfs", "three slashes"),
        ("file:///", "must name a folder"),
    ],
)
def test_an_error_says_what_is_wrong(text: str, what: str) -> None:
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT") as caught:
        parse_bucket_url(text)
    assert what in caught.value.text


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@events/x",
        "s3://secret@events",
        "s3://h:9000/x",
        "https://u:secret@h/x",
        "s3://abc/u:secret@x",
        "s3://abc/?k=secret",
    ],
)
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bucket_url(text)
    assert "secret" not in caught.value.text
    assert "AWS_ACCESS_KEY_ID" in caught.value.text


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    for whole in (text, f"s3://events/{text}", f"file:///{text}", f"s3://{text}"):
        try:
            url = parse_bucket_url(whole)
        except UsageError:
            continue
        assert parse_bucket_url(str(url)) == url
        assert ".." not in url.prefix.split("/")
