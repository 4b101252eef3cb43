"""Conversion of transport connectors: [[connectors]], with the options of their URIs that are available here."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from tandemmq.config import addresses
from tandemmq.config.broker_properties import CONNECTOR, SCHEMES
from tandemmq.config.from_xml.conversion import ANYWAY, Conversion
from tandemmq.config.from_xml.document import Element

_TLS: Final = "Set the certificate in [tls]: Java's keystore is not read."
#: Characters that need no escape in an option.
_SAFE: Final = "/:.,*-_ "


def transport_connectors(work: Conversion, holder: Element) -> None:
    work.wrap(holder)
    for element in work.children(holder, "transportConnector"):
        _connector(work, element)
    work.settings.values.setdefault("connectors", [])


def _connector(work: Conversion, element: Element) -> None:
    if "uri" not in element.attributes:
        work.leave(element, None, "A connector without a URI.")
        return
    base, _, query = work.value(element, "uri").partition("?")
    scheme = base.partition(":")[0]
    refusal = SCHEMES.get(scheme) or _refusal(base)
    if refusal:
        work.leave(element, None, refusal)
        return
    options: list[str] = []
    left: list[str] = []
    given = [("uri", *option.partition("=")[::2]) for option in query.split("&") if option]
    given += [
        (name, name, work.value(element, name))
        for name in element.attributes
        if name in addresses.OPTIONS or name in addresses.ALWAYS
    ]
    for attribute, name, value in given:
        option = f"{name}={value if attribute == 'uri' else quote(value, safe=_SAFE)}"
        reason = _refusal(f"{base}?{option}")
        if not reason and name not in addresses.ALWAYS:
            options.append(option)
        if attribute == "uri":
            left += [f"{name}: {reason}"] if reason else []
        elif reason:
            work.leave(element, attribute, reason)
        else:
            work.became(element, attribute, "connectors.uri" if name in addresses.OPTIONS else ANYWAY)
    table = work.settings.add("connectors", (element, None))
    remarks = [*left, *([_TLS] if addresses.SCHEMES[scheme][1] else [])]
    work.became(element, None, "connectors")
    work.carry(element, "uri", table, "uri", f"{base}?{'&'.join(options)}" if options else base, " ".join(remarks))
    if "name" in element.attributes:
        table.comment = work.value(element, "name")
        work.became(element, "name", "a comment")
    for name in element.attributes:
        if name in CONNECTOR:
            work.carry_known(element, name, CONNECTOR[name], table)
    for child in element.children:
        if child.name in CONNECTOR:
            work.leave(child, None, CONNECTOR[child.name].here)


def _refusal(uri: str) -> str:
    """Return the reason why the loader would refuse that URI; "" if it would not."""
    try:
        addresses.connector(uri)
    except ValueError as error:
        return f"Expected {error}."
    return ""
