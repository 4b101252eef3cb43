"""Map messages as XML and JSON, there and back."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.protocols.stomp import maps
from tandemmq.broker.protocols.stomp.maps import DOCUMENT_BYTES_MAX, read_json, read_xml, write_json, write_xml
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, encode_properties

# XML 1.0 has no way to say other characters.
_texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"))
_plain = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 31), (1 << 31) - 1)
    | st.integers(-(1 << 63), (1 << 63) - 1).map(Long)
    | st.integers(-(1 << 15), (1 << 15) - 1).map(Short)
    | st.integers(-128, 127).map(Byte)
    | st.floats(allow_nan=False)
    | st.floats(width=32, allow_nan=False).map(Float)
    | st.binary(max_size=20)
    | _texts
    | _texts.filter(lambda text: len(text) == 1 and text <= "\uffff").map(Char)
)
# JSON does not keep the order of a list's items of different types.
_values = st.recursive(
    _plain,
    lambda inner: st.lists(st.integers(0, 9), max_size=4) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """A value with all its types, to compare it."""
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return (type(value), math.copysign(1, value), value) if isinstance(value, float) else (type(value), value)


@settings(deadline=None)
@given(entries=st.dictionaries(_texts, _values, max_size=5))
def test_a_map_comes_back_with_its_types(entries: dict[str, Any]) -> None:
    for write, read in ((write_xml, read_xml), (write_json, read_json)):
        found = read(write(entries))
        assert typed(found) == typed(entries)
        encode_properties(found)


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
@settings(deadline=None)
@given(entries=st.dictionaries(_texts, _values, max_size=5))
def test_a_map_read_in_pieces_is_the_same(bytes_max: int, entries: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "PIECE_BYTES_MAX", bytes_max)
        assert typed(read_xml(write_xml(entries))) == typed(entries)
        assert typed(read_json(write_json(entries))) == typed(entries)


@pytest.mark.parametrize("data", [b'{"map":"\\u12"}', b'{"map":' + b"[" * 100_000, b'{"map"}', b"\xff", b'{"map":1e}'])
def test_invalid_json_in_pieces_has_a_reason_too(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PIECE_BYTES_MAX", 1)
    with pytest.raises(ValueError, match=r"\w"):
        read_json(data)


def test_attributes_without_end_are_not_read() -> None:
    """expat reads all of one element at once."""
    names = b" ".join(b'a%d=""' % number for number in range(1_000))
    with pytest.raises(ValueError, match="a tag has more than 1 KiB"):
        read_xml(b"<map " + names + b"/>")
    assert read_xml(XML_ENTRY + b"<string>" + b"x" * 5_000 + b"</string></entry></map>") == {"k": "x" * 5_000}


@pytest.mark.parametrize(
    "section", [b"<!-- < %b -->", b"<![CDATA[ < %b ]]>", b"<!-- <![CDATA[ -->", b"<![CDATA[ <!-- ]]>"]
)
def test_a_long_text_that_is_no_tag_is_accepted(section: bytes) -> None:
    text = section % (b"x" * 2_000) if b"%b" in section else section
    xml = b"<map><entry>%b<string>a</string><int>1</int></entry></map>" % text
    assert read_xml(xml) == {"a": 1}


@pytest.mark.parametrize(
    "section", [b"<?x <!-- ?>%b<!-- -->", b"<!-- <![CDATA[ -->%b<![CDATA[]]>", b"<![CDATA[ <!-- ]]>%b<!-- -->"]
)
def test_a_long_tag_cannot_be_hidden(section: bytes) -> None:
    tag = b"<a %b='1'/>" % (b"b" * 2_000)
    with pytest.raises(ValueError, match="a tag has more than 1 KiB"):
        read_xml(b"<map>%b</map>" % (section % tag))


@pytest.mark.parametrize(
    ("read", "document", "of_one"),
    [
        (read_json, b'{"map":{"entry":[%b]}}', b"1,"),
        (read_json, b'{"map":{"entry":[%b]}}', b"{},"),
        (read_json, b'{"map":{"entry":[%b]}}', b'{"a":[1,2]},'),
        (read_xml, b"<map><entry><string>k</string><list>%b</list></entry></map>", b"<null/>"),
    ],
)
def test_more_values_than_may_be_freed_at_once_are_not_read(
    read: Callable[[bytes], object], document: bytes, of_one: bytes
) -> None:
    many = (of_one * (maps.VALUES_MAX + 1)).rstrip(b",")
    with pytest.raises(ValueError, match="the map has more than 50000 values"):
        read(document % many)


def test_as_many_values_as_there_may_be_are_read() -> None:
    count = maps.VALUES_MAX // 4 - 1
    entries = {f"{number:x}": None for number in range(count)}
    assert read_json(write_json(entries)) == entries
    assert read_xml(write_xml(entries).replace(b" ", b"").replace(b"\n", b"")) == entries


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_a_map_or_a_reason(data: bytes) -> None:
    for read in (read_xml, read_json):
        try:
            found = read(data)
        except ValueError:
            continue
        assert isinstance(found, dict)


@pytest.mark.parametrize(
    ("xml", "json", "entries"),
    [
        (b"<map/>", b'{"map":""}', {}),
        (
            b"<map>\n  <entry>\n    <string>k</string>\n    <null/>\n  </entry>\n</map>",
            b'{"map":{"entry":{"string":"k","null":""}}}',
            {"k": None},
        ),
        (
            b"<map>\n  <entry>\n    <string>k</string>\n    <list>\n      <int>1</int>\n      <int>2</int>\n"
            b"    </list>\n  </entry>\n</map>",
            b'{"map":{"entry":{"string":"k","list":{"int":[1,2]}}}}',
            {"k": [1, 2]},
        ),
        (
            b"<map>\n  <entry>\n    <string>k</string>\n    <string>&lt;3&amp;</string>\n  </entry>\n</map>",
            b'{"map":{"entry":{"string":["k","<3&"]}}}',
            {"k": "<3&"},
        ),
    ],
)
def test_the_forms_are_xstreams(xml: bytes, json: bytes, entries: dict[str, Any]) -> None:
    assert (write_xml(entries), write_json(entries)) == (xml, json)
    assert (read_xml(xml), read_json(json)) == (entries, entries)


XML_ENTRY, JSON_ENTRY = b"<map><entry><string>k</string>", b'{"map":{"entry":'
NO_XML = [
    *(b"", b"<map>", b"<string>a</string>", XML_ENTRY + b"</entry></map>", XML_ENTRY * 40),
    XML_ENTRY + b"<java.net.URL>http://a</java.net.URL></entry></map>",
    XML_ENTRY + b"<int>2147483648</int></entry></map>",
    XML_ENTRY + b"<byte-array>!</byte-array></entry></map>",
    XML_ENTRY + b"<int>" + b"9" * 5000 + b"</int></entry></map>",
    b'<!DOCTYPE map [<!ENTITY a "aaaa">]>' + XML_ENTRY + b"<string>&a;</string></entry></map>",
    b"<map>" + b" " * DOCUMENT_BYTES_MAX + b"</map>",
]
NO_JSON = [
    *(b"", b"{}", JSON_ENTRY + b"[[]]}}", b'{"object":{}}', b"[" * 100_000, b" " * (DOCUMENT_BYTES_MAX + 1)),
    JSON_ENTRY + b'{"int":1,"string":"k"}}}',
    JSON_ENTRY + b'{"string":["k"]}}}',
    JSON_ENTRY + b'{"string":"k","int":1.5}}}',
    (JSON_ENTRY + b'{"string":"k","map":') * 40,
    b'{"map":' * 40 + b"1" + b"}" * 40,
]


@pytest.mark.parametrize(
    ("read", "data"), [*((read_xml, each) for each in NO_XML), *((read_json, each) for each in NO_JSON)]
)
def test_no_other_xml_or_json_is_read(read: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(data)


@pytest.mark.parametrize(("write", "read"), [(write_xml, read_xml), (write_json, read_json)])
def test_a_map_takes_little_memory_while_it_is_read_and_written(
    write: Callable[[dict[str, Any]], bytes], read: Callable[[bytes], dict[str, Any]]
) -> None:
    entries = {f"k{number}": number for number in range(1_000)}
    document = write(entries)
    for work, argument in ((write, entries), (read, document)):
        tracemalloc.start()
        try:
            work(argument)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken < 400 * len(entries) + len(document), work  # with a tree of elements it would be 600 to 900


@pytest.mark.parametrize("write", [write_xml, write_json])
def test_a_long_text_is_written_in_pieces(write: Callable[[dict[str, Any]], bytes]) -> None:
    text = '<"&\n\ud800ä' * maps.PIECE_BYTES_MAX
    read = read_xml if write is write_xml else read_json
    assert read(write({"k": text})) == {"k": text.replace("\ud800", "?")}
