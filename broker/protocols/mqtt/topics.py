"""Topic names and topic filters (MQTT 5.0, 4.7 and 4.8.2), their destinations, and the names of their durable
subscriptions. Pure.

    topic    sport/tennis/+   sport/#   a.b    a*b    10%   a,b     (a blank)a
    name     sport.tennis.*   sport.>   a/b    a+b    10%   a%2Cb   %20a

As in ActiveMQ ``/`` and ``.``, ``+`` and ``*``, ``#`` and ``>`` change places, both ways. Characters with a meaning of
their own in a destination's name (broker.core.names) are percent-encoded there, and so is a percent sign that would
otherwise be taken for the beginning of such a code. So each topic has one name, and each name of a topic one topic: a
name to which no MQTT client could have published, such as ``a*b``, has a topic that ``check_topic`` refuses.

    AT_LEAST_ONCE:sport/+        EXACTLY_ONCE:sport/#

So ActiveMQ names the durable subscription that gathers for a client. The QoS is that of the first SUBSCRIBE. By these
names the broker finds subscriptions that ActiveMQ made, and ActiveMQ finds those that are made here: a client may come
back to either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tandemmq.broker.protocols.mqtt.properties import is_text
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason
from tandemmq.store.records.message import Destination, DestinationKind

SHARE: Final = "$share/"
#: Characters of a wrong name that an error repeats.
SHOWN_MAX: Final = 200
_SWAPPED: Final = str.maketrans("/.+*#>", "./*+>#")
# A code, and how often it was itself encoded: %2C is a comma, %252C was %2C, %25252C was %252C.
_CODE: Final = re.compile("%(?:25)*(?:2C|3F)")
_CODE_OR_CHARACTER: Final = re.compile(f"{_CODE.pattern}|[,?]")
# Blanks count only as the first and the last character of a name: Java's trim() takes them away.
_BLANK_CODE: Final = re.compile("%(?:25)*(?:[01][0-9A-F]|20)")
_LAST_BLANK: Final = " "
_NAMES: Final = {1: "AT_LEAST_ONCE", 2: "EXACTLY_ONCE"}
_QOS: Final = {name: qos for qos, name in _NAMES.items()}


def check_topic(topic: str) -> None:
    """Raise MqttError where it is no topic name: empty, with a wildcard or U+0000 in it (MQTT-4.7.3-1, 4.7.3-2,
    3.3.2-2)."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise MqttError(
            Reason.TOPIC_NAME_INVALID, f"{_shown(topic)}: a topic name has at least one character, and no wildcard"
        )


def check_filter(text: str) -> None:
    """Raise MqttError where it is no topic filter: empty, with U+0000, or a wildcard where it must not be
    (MQTT-4.7.1-1, 4.7.1-2, 4.7.3-1, 4.7.3-2). For a shared one, check what is after its group."""
    if not text or "\0" in text:
        raise _no_filter(text, "a topic filter has at least one character")
    if "#" in text and (text.index("#") != len(text) - 1 or (len(text) > 1 and text[-2] != "/")):
        raise _no_filter(text, "# is the last level of a topic filter, and all of it")
    # Of 100 levels in 1.4 microseconds. A pattern takes three times as long, and a packet may have very many filters.
    if "+" in text and text.split("/").count("+") != text.count("+"):
        raise _no_filter(text, "+ is a whole level of a topic filter")


def _no_filter(text: str, reason: str) -> MqttError:
    return MqttError(Reason.TOPIC_FILTER_INVALID, f"{_shown(text)}: {reason}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")


def share_of(text: str) -> tuple[str, str] | None:
    """Return group and filter of a shared subscription's filter; None: it is no shared one. MqttError where it is
    malformed (MQTT-4.8.2-1, 4.8.2-2)."""
    if not text.startswith(SHARE):
        return None
    group, slash, shared = text.removeprefix(SHARE).partition("/")
    if not group or not slash or "+" in group or "#" in group:
        raise _no_filter(text, "a shared subscription is $share/group/filter")
    check_filter(shared)
    return group, shared


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a message to ``topic`` is for a subscription to ``topic_filter``; both are valid, and it is no
    shared one. MQTT-4.7.2-1: a wildcard at the beginning does not match topics that begin with $."""
    if topic[0] == "$" and topic_filter[0] in "+#":
        return False
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    if wanted[-1] == "#":
        del wanted[-1]  # MQTT 5.0, 4.7.1.2: also the level above
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(each in ("+", level) for each, level in zip(wanted, levels, strict=False))


def destination_of(topic_or_filter: str) -> Destination:
    """Return the topic that a topic name is to the broker, or the wildcard that a filter is."""
    name = topic_or_filter.translate(_SWAPPED)
    if "%" in name or "," in name or "?" in name or name[0] <= _LAST_BLANK or name[-1] <= _LAST_BLANK:
        name = _encoded(name)
    return Destination(DestinationKind.TOPIC, name)


def topic_of(name: str) -> str:
    """Return the topic name, or the filter, of a topic's ``name``: ``destination_of`` of it has that name."""
    return (_decoded(name) if "%" in name else name).translate(_SWAPPED)


def topic_if_any(name: str) -> str:
    """Return the topic name as ``topic_of`` does. "": MQTT has no such topic (MQTT-3.3.2-2, 3.3.2-14)."""
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
    """Return where ``text`` begins and ends without the blank, or the code of one, at each of its ends."""
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
    """Return a character or a code with one more code around it; "" stays."""
    if not text:
        return ""
    return f"%25{text[1:]}" if text[0] == "%" else f"%{ord(text):02X}"


def _one_code_less(code: str) -> str:
    if not code:
        return ""
    return f"%{code[3:]}" if code.startswith("%25") else chr(int(code[1:], 16))


def durable_name(qos: int, topic_filter: str) -> str:
    """Return the name of a subscription of QoS 1 or 2."""
    return f"{_NAMES[qos]}:{topic_filter}"


def gathering(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the names of MQTT among those of a client id: name and QoS by topic filter. A filter that has two, which
    ActiveMQ allows, is given with the higher QoS; the other one is not for MQTT any more."""
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
