"""Tests of IDENTIFY: what is granted, in the bytes that nsqd 1.3 answers, and what is refused, with
which text.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.nsq.errors import NsqError
from zsq.transport.nsq.identify import ClientIdentity, decode
from zsq.transport.nsq.limits import JSON_DEPTH_MAX, STRING_BYTES_MAX, NsqLimits

LIMITS = NsqLimits(tls_v1=True, topology_region="r", topology_zone="z")
JSON_ERROR = "E_BAD_BODY IDENTIFY failed to decode JSON body"


def asked(**fields: Any) -> ClientIdentity:
    return decode(json.dumps(fields).encode(), LIMITS)


def refused(body: bytes, limits: NsqLimits = LIMITS) -> str:
    with pytest.raises(NsqError) as caught:
        decode(body, limits)
    assert caught.value.fatal
    return str(caught.value)


def test_an_identify_without_wishes_is_answered_with_the_defaults() -> None:
    assert asked().answer() == b"OK"
    assert asked(feature_negotiation=True).answer() == (
        b'{"max_rdy_count":2500,"version":"1.3.0",'
        b'"max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,"deflate":false,'
        b'"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"r","topology_zone":"z"}'
    )


def test_the_answer_to_all_that_can_be_asked() -> None:
    identity = asked(
        client_id="c", hostname="h", user_agent="u/1", feature_negotiation=True, heartbeat_interval=60000, output_buffer_size=65536,
        output_buffer_timeout=30000, tls_v1=True, deflate=True, deflate_level=3, sample_rate=99, msg_timeout=900000,
        topology_region="eu", topology_zone="eu-1",
    )  # fmt: skip
    assert asdict(identity) == {
        "limits": asdict(LIMITS), "client_id": "c", "hostname": "h", "user_agent": "u/1", "feature_negotiation": True,
        "heartbeat_ms": 60000, "msg_timeout_ms": 900000, "sample_rate": 99, "output_buffer_size": 65536,
        "output_buffer_timeout_ms": 30000, "tls": True, "deflate": True, "deflate_level": 3, "snappy": False,
        "topology_region": "eu", "topology_zone": "eu-1",
    }  # fmt: skip
    answer = json.loads(identity.answer())
    assert (answer["tls_v1"], answer["deflate"], answer["deflate_level"]) == (True, True, 3)
    assert (answer["sample_rate"], answer["msg_timeout"], answer["output_buffer_timeout"]) == (
        99,
        900000,
        30000,
    )
    assert identity.layers == ("tls", "deflate")


def test_a_client_without_identify_gets_the_defaults() -> None:
    limits = NsqLimits(
        client_timeout_ms=10_000,
        msg_timeout_ms=1234,
        output_buffer_size=99,
        output_buffer_timeout_ms=77,
    )
    unknown = ClientIdentity.unknown(limits)
    assert (
        unknown.heartbeat_ms,
        unknown.msg_timeout_ms,
        unknown.output_buffer_size,
        unknown.output_buffer_timeout_ms,
    ) == (
        5000,
        1234,
        99,
        77,
    )
    assert decode(b"{}", limits) == unknown


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"heartbeat_interval": -1}, {"heartbeat_ms": 0}),
        ({"heartbeat_interval": 0}, {"heartbeat_ms": 30000}),
        ({"heartbeat_interval": 1000}, {"heartbeat_ms": 1000}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout_ms": 0}),
        (
            {"output_buffer_size": -1, "output_buffer_timeout": 100},
            {"output_buffer_size": 1, "output_buffer_timeout_ms": 0},
        ),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64, "output_buffer_timeout_ms": 250}),
        (
            {"output_buffer_timeout": -1},
            {"output_buffer_size": 16384, "output_buffer_timeout_ms": 0},
        ),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout_ms": 25}),
        ({"msg_timeout": 0}, {"msg_timeout_ms": 60000}),
        ({"msg_timeout": 1000}, {"msg_timeout_ms": 1000}),
        # Nothing is granted, because the client did not ask for negotiation.
        (
            {"tls_v1": True, "snappy": True},
            {"tls": False, "snappy": False},
        ),
        ({"snappy": True, "deflate": True}, {"snappy": False, "deflate": False}),
        ({"feature_negotiation": True, "snappy": True}, {"snappy": True, "layers": ("snappy",)}),
        (
            {"feature_negotiation": True, "snappy": True, "tls_v1": True},
            {"layers": ("tls", "snappy")},
        ),
        (
            {"feature_negotiation": True, "deflate": True, "deflate_level": 9},
            {"deflate": True, "deflate_level": 6},
        ),
        (
            {"feature_negotiation": True, "deflate": True, "deflate_level": -3},
            {"deflate": True, "deflate_level": 6},
        ),
        ({"feature_negotiation": True, "deflate_level": 2}, {"deflate": False, "deflate_level": 6}),
    ],
)
def test_each_requested_field_is_granted_as_nsqd_does(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    identity = asked(**fields)
    assert {name: getattr(identity, name) for name in expected} == expected


def test_features_that_the_node_does_not_have_are_not_granted() -> None:
    limits = NsqLimits(deflate=False, max_deflate_level=4, tls_v1=False)
    body = b'{"feature_negotiation":true,"tls_v1":true,"deflate":true,"snappy":true}'
    identity = decode(body, limits)
    assert identity.layers == ("snappy",)
    assert identity.deflate_level == 4
    assert decode(body, NsqLimits(snappy=False)).layers == ("deflate",)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"heartbeat_interval": 999}, "E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid"),
        (
            {"heartbeat_interval": 60001},
            "E_BAD_BODY IDENTIFY heartbeat interval (60001) is invalid",
        ),
        ({"heartbeat_interval": -2}, "E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"),
        ({"output_buffer_size": 63}, "E_BAD_BODY IDENTIFY output buffer size (63) is invalid"),
        (
            {"output_buffer_size": 65537},
            "E_BAD_BODY IDENTIFY output buffer size (65537) is invalid",
        ),
        (
            {"output_buffer_timeout": 24},
            "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid",
        ),
        (
            {"output_buffer_timeout": 30001},
            "E_BAD_BODY IDENTIFY output buffer timeout (30001) is invalid",
        ),
        (
            {"output_buffer_timeout": 24, "output_buffer_size": 63},
            "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid",
        ),
        ({"sample_rate": 100}, "E_BAD_BODY IDENTIFY sample rate (100) is invalid"),
        ({"sample_rate": -1}, "E_BAD_BODY IDENTIFY sample rate (-1) is invalid"),
        ({"msg_timeout": 999}, "E_BAD_BODY IDENTIFY msg timeout (999) is invalid"),
        ({"msg_timeout": 900001}, "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid"),
        (
            {"heartbeat_interval": 1, "msg_timeout": 1},
            "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid",
        ),
        (
            {"feature_negotiation": True, "deflate": True, "snappy": True},
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
        ({"heartbeat_interval": 1.0}, JSON_ERROR),
        ({"heartbeat_interval": True}, JSON_ERROR),
        ({"heartbeat_interval": "1000"}, JSON_ERROR),
        ({"tls_v1": 1}, JSON_ERROR),
        ({"client_id": 1}, JSON_ERROR),
        ({"client_id": []}, JSON_ERROR),
        ({"hostname": {}}, JSON_ERROR),
        ({"msg_timeout": 1 << 63}, JSON_ERROR),
        ({"sample_rate": 1 << 31}, JSON_ERROR),
        ({"CLIENT_ID": 1}, JSON_ERROR),
    ],
)
def test_each_invalid_field_is_refused_with_the_text_of_nsqd(
    fields: dict[str, Any], text: str
) -> None:
    assert refused(json.dumps(fields).encode()) == text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b'"x"', b"{} x", b"\xef\xbb\xbf{}", b'{"client_id":"a\nb"}',
     b'{"x":NaN}', b"{'a':1}", b'{"a":1,}', b"[" * 100_000,
     b'{"msg_timeout":1e4}', b'{"msg_timeout":01000}', b'{"msg_timeout":' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_json_that_go_refuses_is_refused(body: bytes) -> None:
    assert refused(body) == JSON_ERROR


@pytest.mark.parametrize(
    ("body", "client_id"),
    [
        (b"null", ""),
        (b'{"client_id":null}', ""),
        (b'{"Client_ID":"any case"}', "any case"),
        (b'{"client_id":"a","client_id":"b"}', "b"),
        (b'{"client_id":"a","CLIENT_id":"b","client_id":null}', "b"),
        (b' \r\n\t{"client_id" : "a"} ', "a"),
        (
            b'{"client_id":"a","unknown":[{"client_id":5}],"other":1e99,"large":'
            + b"9" * 5000
            + b"}",
            "a",
        ),
        (b'{"client_id":"\xff"}', "\ufffd"),
        (b'{"client_id":"\\ud800x"}', "\ufffdx"),
        (b'{"client_id":"\\ud83d\\ude00"}', "\U0001f600"),
    ],
)
def test_json_is_decoded_as_go_does(body: bytes, client_id: str) -> None:
    assert decode(body, LIMITS).client_id == client_id


def test_the_answer_is_escaped_as_go_does() -> None:
    limits = NsqLimits(version='<&>\u2028é"')
    assert (
        b'"version":"\\u003c\\u0026\\u003e\\u2028\xc3\xa9\\""'
        in decode(b'{"feature_negotiation":true}', limits).answer()
    )


fields = st.sampled_from(
    ["client_id", "heartbeat_interval", "tls_v1", "Snappy", "sample_rate", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(fields, values, max_size=5).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=50)
)
def test_any_identify_body_is_granted_or_refused(body: bytes) -> None:
    try:
        identity = decode(body, LIMITS)
    except NsqError as error:
        assert error.data.startswith((b"E_BAD_BODY IDENTIFY ", b"E_IDENTIFY_FAILED "))  # noqa: PT017
    else:
        assert identity.answer()
        identity.client_id.encode()


@pytest.mark.parametrize(
    ("limits", "asked", "told"),
    [
        (NsqLimits(), b"{}", False),
        (NsqLimits(), b'{"topology_zone":"a"}', True),
        (NsqLimits(topology_region="r"), b"{}", True),
    ],
)
def test_topology_is_reported_only_if_the_node_or_the_client_has_one(
    limits: NsqLimits, asked: bytes, told: bool
) -> None:
    """nsqd 1.3 does not have these fields."""
    body = asked[:-1] + (b"," if len(asked) > 2 else b"") + b'"feature_negotiation":true}'
    answer = decode(body, limits).answer()
    assert (b"topology_zone" in answer, b"topology_region" in answer) == (told, told)


# What unknown clients may send about themselves


@pytest.mark.parametrize(
    "field", ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"]
)
def test_strings_are_cut_between_two_characters(field: str) -> None:
    for text in ("x" * 100_000, "ä" * 1000, "€" * 1000, "\U0001f600" * 1000, "x" + "ä" * 128):
        found = getattr(asked(**{field: text}), field)
        assert text.startswith(found)
        assert STRING_BYTES_MAX - 4 < len(found.encode()) <= STRING_BYTES_MAX
    assert getattr(asked(**{field: "x" * STRING_BYTES_MAX}), field) == "x" * STRING_BYTES_MAX


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")]
)
def test_deeply_nested_json_is_refused_before_it_is_parsed(
    opening: bytes, closing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    loads = json.loads

    def noted(text: str, **more: Any) -> Any:
        parsed.append(text)
        return loads(text, **more)

    monkeypatch.setattr(json, "loads", noted)
    per = opening.count(b"[") + opening.count(b"{")
    deepest = (JSON_DEPTH_MAX - 1) // per
    assert decode(
        b'{"x":' + opening * deepest + b"1" + closing * deepest + b"}", LIMITS
    ) == ClientIdentity.unknown(LIMITS)
    assert len(parsed) == 1
    assert (
        refused(b'{"x":' + opening * (deepest + 2) + b"1" + closing * (deepest + 2) + b"}")
        == JSON_ERROR
    )
    assert refused(b'{"x":"\\"",' + b'"y":' + opening * 3_000) == JSON_ERROR
    assert len(parsed) == 1


def test_brackets_in_strings_are_not_depth() -> None:
    assert asked(user_agent="[{" * 100, hostname='"[' * 100, other=[[]] * 50).hostname == '"[' * 100
    # A string without an end is searched only once.
    body = b'{"user_agent":"' + b"\\" * 5_000 + b"[" * 5_000
    assert refused(body) == JSON_ERROR
