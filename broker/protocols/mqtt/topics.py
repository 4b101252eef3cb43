"""Topic names and topic filters (MQTT 5.0, 4.7 and 4.8.2), their destinations, and the names of their durable
subscriptions. Pure.

    topic    sport/tennis/+   sport/#   a.b    a*b    10%   a,b     (a blank)a
    name     sport.tennis.*   sport.>   a/b    a+b    10%   a%2Cb   %20a

As in ActiveMQ, ``/`` and ``.``, ``+`` and ``*``, ``#`` and ``>`` are exchanged in both directions. Characters that have
a meaning in a destination's name (broker.core.names) are percent-encoded, and so is a percent sign that would look like
the beginning of such a code. So each topic has exactly one name, and each name exactly one topic. A name to which no
MQTT client can publish, such as ``a*b``, has a topic that ``check_topic`` refuses.

    AT_LEAST_ONCE:sport/+        EXACTLY_ONCE:sport/#

These are the names of durable subscriptions in ActiveMQ. The QoS is that of the first SUBSCRIBE. With the same names,
the broker finds the subscriptions that ActiveMQ created, and the reverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tandemmq.broker.protocols.mqtt.properties import is_text
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason
from tandemmq.store.records.message import Destination, DestinationKind

SHARE: Final = "$share/"
#: Limit of the characters of a wrong name in an error text.
SHOWN_MAX: Final = 200
_SWAPPED: Final = str.maketrans("/.+*#>", "./*+>#")
# A code that may itself be encoded, several times: %2C is a comma, %252C is %2C encoded, %25252C is %252C encoded.
_CODE: Final = re.compile("%(?:25)*(?:2C|3F)")
_CODE_OR_CHARACTER: Final = re.compile(f"{_CODE.pattern}|[,?]")
# Blanks are encoded only as the first and the last character of a name: Java's trim() removes them.
_BLANK_CODE: Final = re.compile("%(?:25)*(?:[01][0-9A-F]|20)")
_LAST_BLANK: Final = " "
_NAMES: Final = {1: "AT_LEAST_ONCE", 2: "EXACTLY_ONCE"}
_QOS: Final = {name: qos for qos, name in _NAMES.items()}


def check_topic(topic: str) -> None:
    """Raise MqttError unless ``topic`` is a valid topic name: not empty, without wildcards and U+0000 (MQTT-4.7.3-1,
    4.7.3-2, 3.3.2-2)."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise MqttError(
            Reason.TOPIC_NAME_INVALID, f"{_shown(topic)}: a topic name has at least one character, and no wildcard"
        )


def check_filter(text: str) -> None:
    """Raise MqttError unless ``text`` is a valid topic filter: not empty, without U+0000, wildcards only where they are
    permitted (MQTT-4.7.1-1, 4.7.1-2, 4.7.3-1, 4.7.3-2). For a shared subscription, pass the part after the group."""
    if not text or "\0" in text:
        raise _no_filter(text, "a topic filter has at least one character")
    if "#" in text and (text.index("#") != len(text) - 1 or (len(text) > 1 and text[-2] != "/")):
        raise _no_filter(text, "# is the last level of a topic filter, and all of it")
    # This takes 1.4 microseconds for 100 levels. A regular expression takes three times as long, and a packet may have
    # very many filters.
    if "+" in text and text.split("/").count("+") != text.count("+"):
        raise _no_filter(text, "+ is a whole level of a topic filter")


def _no_filter(text: str, reason: str) -> MqttError:
    return MqttError(Reason.TOPIC_FILTER_INVALID, f"{_shown(text)}: {reason}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")


def share_of(text: str) -> tuple[str, str] | None:
    """Return group and filter of a shared subscription; None: ``text`` is not a shared one. Raises MqttError if it is
    malformed (MQTT-4.8.2-1, 4.8.2-2)."""
    if not text.startswith(SHARE):
        return None
    group, slash, shared = text.removeprefix(SHARE).partition("/")
    if not group or not slash or "+" in group or "#" in group:
        raise _no_filter(text, "a shared subscription is $share/group/filter")
    check_filter(shared)
    return group, shared


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether ``topic_filter`` matches ``topic``. Both must be valid; the filter is without the group of a
    shared subscription. A wildcard at the beginning does not match topics that begin with $ (MQTT-4.7.2-1)."""
    if topic[0] == "$" and topic_filter[0] in "+#":
        return False
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    if wanted[-1] == "#":
        del wanted[-1]  # MQTT 5.0, 4.7.1.2: sport/# also matches sport
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(each in ("+", level) for each, level in zip(wanted, levels, strict=False))


def destination_of(topic_or_filter: str) -> Destination:
    """Return the broker's destination for a topic name or a topic filter."""
    name = topic_or_filter.translate(_SWAPPED)
    if "%" in name or "," in name or "?" in name or name[0] <= _LAST_BLANK or name[-1] <= _LAST_BLANK:
        name = _encoded(name)
    return Destination(DestinationKind.TOPIC, name)


def topic_of(name: str) -> str:
    """Return the topic name or topic filter for the ``name`` of a destination: the inverse of ``destination_of``."""
    return (_decoded(name) if "%" in name else name).translate(_SWAPPED)


def topic_if_any(name: str) -> str:
    """Return the topic name like ``topic_of``; "": it is not a valid MQTT topic (MQTT-3.3.2-2, 3.3.2-14)."""
    topic = topic_of(name)
    return "" if "+" in topic or "#" in topic or not is_text(topic) else topic


def _encoded(text: str) -> str:
    start, end = _middle(text)
    middle = _CODE_OR_CHARACTER.sub(lambda found: _one_code_more(found[0]), text[start:end])
    return _one_code_more(text[:start]) + middle + _one_code_more(text[end:])


def _decoded(name: str) -> str:
    start, end = _middle(name)
    middle = _CODE.sub(lambda found: _one_code_less(found[0]), name[start:end])
    return _one_code_less(name[:start]) + middle + _one_code_less(name[end:])


def _middle(text: str) -> tuple[int, int]:
    """Return start and end of the part of ``text`` without a blank, or the code of a blank, at its beginning and
    end."""
    start = 0
    if text[0] <= _LAST_BLANK:
        start = 1
    elif (found := _BLANK_CODE.match(text)) is not None:
        start = found.end()
    end = len(text)
    if start < end:
        if text[-1] <= _LAST_BLANK:
            return start, end - 1
        last = text.rfind("%", start)
        if last >= 0 and _BLANK_CODE.fullmatch(text, last) is not None:
            return start, last
    return start, end


def _one_code_more(text: str) -> str:
    """Percent-encode a character, or encode a code once more; "" stays ""."""
    if not text:
        return ""
    return f"%25{text[1:]}" if text[0] == "%" else f"%{ord(text):02X}"


def _one_code_less(code: str) -> str:
    if not code:
        return ""
    return f"%{code[3:]}" if code.startswith("%25") else chr(int(code[1:], 16))


def durable_name(qos: int, topic_filter: str) -> str:
    """Return the name of the durable subscription for a filter with QoS 1 or 2."""
    return f"{_NAMES[qos]}:{topic_filter}"


def gathering(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the durable subscriptions of MQTT among the names of a client id: name and QoS, by topic filter. ActiveMQ
    may store two names for one filter; then only the one with the higher QoS is returned."""
    found: dict[str, tuple[str, int]] = {}
    for name in names:
        qos_name, _, topic_filter = name.partition(":")
        qos = _QOS.get(qos_name)
        if qos is None or topic_filter.startswith(SHARE):
            continue
        try:
            check_filter(topic_filter)
        except MqttError:
            continue
        if topic_filter not in found or found[topic_filter][1] < qos:
            found[topic_filter] = name, qos
    return found
