"""Dangerous XML is refused with a clear text. Line numbers and placeholders are correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.config.from_xml.document import DEPTH_MAX, XML_BYTES_MAX, UnreadableXml, fill_in, properties_of, read

BOMB = (
    '<!DOCTYPE b [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    + "]><broker>&a9;</broker>"
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        '<!DOCTYPE b [<!ENTITY a "' + "x" * 1000 + '">]><broker>' + "&a;" * 1000 + "</broker>",
        '<!DOCTYPE b [<!ENTITY a SYSTEM "file://{secret}">]><broker brokerName="x">&a;</broker>',
        '<!DOCTYPE b [<!ENTITY % a SYSTEM "file://{secret}"> %a;]><broker/>',
        '<!DOCTYPE b SYSTEM "http://127.0.0.1:1/b.dtd"><broker/>',
        '<!DOCTYPE b [<!ATTLIST broker brokerName CDATA "planted">]><broker/>',
    ],
    ids=["bomb", "long", "external", "parameter", "outer", "default"],
)
def test_entities_and_document_types_are_refused_in_plain_words(text: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    with pytest.raises(UnreadableXml) as refused:
        read(text.replace("{secret}", str(secret)).encode())
    assert "a document type (<!DOCTYPE …>) is refused" in str(refused.value)
    assert "top secret" not in str(refused.value)


def test_an_include_is_an_element_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret")
    include = f'<xi:include href="{tmp_path}/secret" parse="text"/>'
    root = read(f'<broker xmlns:xi="http://www.w3.org/2001/XInclude">{include}</broker>'.encode())
    assert [each.name for each in root.children] == ["{http://www.w3.org/2001/XInclude}include"]
    assert root.children[0].text == ""


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "line 1: not XML"),
        (b"<broker>\n<a></b></broker>", "line 2: not XML"),
        (b"<?xml version='1.0' encoding='none'?><broker/>", "not XML"),
        (b"<?xml version='1.0' encoding='shift_jis'?><broker/>", "not XML"),
        (b"\xff\xfe\x00", "not XML"),
        (b"<broker>\xff</broker>", "not XML"),
        (b"<a>" * DEPTH_MAX + b"<b/>" + b"</a>" * DEPTH_MAX, "nested elements"),
        (b" " * (XML_BYTES_MAX + 1), "at most 1mb"),
    ],
)
def test_invalid_xml_is_refused_with_its_line(raw: bytes, expected: str) -> None:
    with pytest.raises(UnreadableXml) as refused:
        read(raw)
    assert expected in str(refused.value)


def test_elements_know_their_lines_and_paths() -> None:
    root = read(b"<broker>\n <a x='1'/>\n <a/><b> text\n</b></broker>")
    assert [(each.path, each.line, each.text) for each in root.walk()] == [
        ("broker", 1, ""),
        ("broker/a", 2, ""),
        ("broker/a[2]", 3, ""),
        ("broker/b", 3, "text"),
    ]
    assert root.children[0].attributes == {"x": "1"}


def test_placeholders_are_filled_in() -> None:
    values = {"activemq.home": "/opt/amq", "inner": "${deep}", "deep": "x"}
    assert fill_in("${activemq.data}/kahadb", values) == ("/opt/amq/data/kahadb", [])
    assert fill_in("${activemq.data}", {"activemq.data": "/d"}) == ("/d", [])
    assert fill_in("${inner}-${none:else}", values) == ("x-else", [])
    assert fill_in("${none} and $x {y}", values) == ("${none} and $x {y}", ["none"])
    assert fill_in("${me}", {"me": "${me}"})[1] == ["me"], "a circle ends"


def test_a_java_properties_file_is_read() -> None:
    text = "# no\n! no=1\na.b=c d \\\n   e\nx: y=z\nk\\ ey = \\u0041\\t\nempty\n"
    assert properties_of(text) == {"a.b": "c d e", "x": "y=z", "k ey": "A\t", "empty": ""}
