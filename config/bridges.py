"""The tables [[bridges]]: topics from and to another MQTT broker, as mosquitto's ``connection`` has them.

A topic of a bridge is ``<local_prefix><pattern>`` here and ``<remote_prefix><pattern>`` there.
"""

from __future__ import annotations

from itertools import combinations, product, zip_longest
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config import addresses
from tandemmq.config.addresses import Address
from tandemmq.config.mqtt import TWO_BYTES_MAX
from tandemmq.config.section import AnyCase, Listed, Path, Section
from tandemmq.config.units import Count, Milliseconds

MQTT: Final = "mqtt://"
MQTTS: Final = "mqtts://"
#: MQTT's strings have 64 KiB; beyond this a client id has no place in a queue's name.
CLIENT_ID_CHARACTERS_MAX: Final = 100
SECOND: Final = 1_000


def _address_of(uri: str) -> Address:
    scheme = next((each for each in (MQTT, MQTTS) if uri.startswith(each)), None)
    try:
        found = None if scheme is None else addresses.address(uri.removeprefix(scheme))
    except ValueError:
        found = None
    if found is None or not found.port:
        raise ValueError("mqtt://HOST:PORT or mqtts://HOST:PORT")
    return found


def _uri(uri: str) -> str:
    _address_of(uri)
    return uri


def _prefix(text: str) -> str:
    if any(each in text for each in "+#\0") or text.startswith("$"):
        raise ValueError("the beginning of a topic, without + and #")
    return text


def _pattern(text: str) -> str:
    levels = text.split("/")
    is_right = text != "" and "\0" not in text and "#" not in levels[:-1] and not text.startswith("$")
    if not is_right or any(len(each) > 1 and ("+" in each or "#" in each) for each in levels):
        raise ValueError("a topic filter of MQTT, not of a shared subscription")
    return text


def meet(one: str, other: str) -> bool:
    """Whether there is a topic that both filters match."""
    for mine, theirs in zip_longest(one.split("/"), other.split("/")):
        if mine == "#" or theirs == "#":
            return True
        if mine is None or theirs is None or (mine != theirs and "+" not in (mine, theirs)):
            return False
    return True


Prefix = Annotated[str, AfterValidator(_prefix)]


class BridgeTopicSettings(Section):
    pattern: Annotated[str, AfterValidator(_pattern)]
    """Which topics: a filter of MQTT, behind the prefixes."""
    direction: Annotated[Literal["in", "out", "both"], AnyCase] = "out"
    """From the other broker, to it, or both."""
    qos: Literal[0, 1, 2] = 1
    """What the bridge asks for, and gives at most: 2, each message once; 1, at least once; 0, at most once."""
    local_prefix: Prefix = ""
    """Stands in front of the pattern here."""
    remote_prefix: Prefix = ""
    """Stands in front of it there."""

    @property
    def local(self) -> str:
        """The filter here."""
        return self.local_prefix + self.pattern

    @property
    def remote(self) -> str:
        """The filter there."""
        return self.remote_prefix + self.pattern

    @property
    def is_in(self) -> bool:
        return self.direction != "out"

    @property
    def is_out(self) -> bool:
        return self.direction != "in"


class BridgeTlsSettings(Section):
    ca: Path | None = None
    """The certificates, PEM, that may sign the other broker's. Default: those of the system."""
    certificate: Path | None = None
    """What the bridge shows, PEM."""
    key: Path | None = None
    """Its private key, PEM. Default: in the file of the certificate."""
    key_password_file: Path | None = None
    """Where the key's password stands, if it has one."""


class BridgeSettings(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Of this bridge: letters, digits, `.`, `_` and `-`. What it keeps here is under this name."""
    addresses: Annotated[tuple[Annotated[str, AfterValidator(_uri)], ...], Listed, Field(min_length=1)]
    """The other broker, `mqtt://HOST:PORT` or `mqtts://HOST:PORT`; several are tried in turn."""
    client_id: Annotated[str, Field(max_length=CLIENT_ID_CHARACTERS_MAX)] = ""
    """By which the other broker knows the bridge, the same on all brokers of a pair. Default: `tandemmq-<name>`."""
    username: str | None = None
    """For the other broker."""
    password: str | None = None
    """Its password; better in a file."""
    password_file: Path | None = None
    """Where the password stands, read at each connect."""
    tls: BridgeTlsSettings = BridgeTlsSettings()
    """For `mqtts://`."""
    protocol_version: Literal["3.1.1", "5"] = "5"
    """Of MQTT."""
    bridge_mode: bool = False
    """Say in CONNECT that it is a bridge, as mosquitto's `try_private`: a mosquitto then sends nothing back that came
    from here, with MQTT 3.1.1 too. Other brokers refuse such a CONNECT."""
    keep_alive: Milliseconds = Field(60 * SECOND, ge=5 * SECOND, le=TWO_BYTES_MAX * SECOND)
    """So long nothing need come, then it is asked for a sign of life."""
    max_inflight_messages: Count = Field(100, ge=1, le=10_000)
    """So many messages of QoS 1 and 2 may be on their way, not confirmed, in each direction."""
    restart_timeout: Milliseconds = Field(1 * SECOND, ge=100)
    """So long after a failure, on all addresses, it tries again; each further time twice as long."""
    restart_timeout_max: Milliseconds = Field(30 * SECOND, ge=100)
    """But not longer than this."""
    topics: Annotated[tuple[BridgeTopicSettings, ...], Field(min_length=1, max_length=1_000)]

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password or password_file, not both")
        if self.password_given and self.username is None:
            raise ValueError("a username beside the password")
        if self.bridge_mode and self.protocol_version != "3.1.1":
            raise ValueError('bridge_mode with protocol_version = "3.1.1" alone; MQTT 5 has no need of it')
        ins = [each for each in self.topics if each.is_in]
        outs = [each for each in self.topics if each.is_out]
        for one, other in combinations(ins, 2):
            if meet(one.remote, other.remote):
                raise ValueError(f"no topics that come twice: {one.remote} and {other.remote} both match some")
        for one, other in combinations(outs, 2):
            if meet(one.local, other.local):
                raise ValueError(f"no topics that go twice: {one.local} and {other.local} both match some")
        if self.protocol_version == "3.1.1" and not self.bridge_mode:
            for one, other in product(ins, outs):
                if meet(one.remote, other.remote):
                    raise ValueError(
                        f"no loop: with MQTT 3.1.1 {other.remote} comes back by {one.remote}. Set protocol_version = "
                        '"5"; to a mosquitto, bridge_mode = true; or different remote_prefix'
                    )
        return self

    @property
    def password_given(self) -> bool:
        return self.password is not None or self.password_file is not None

    @property
    def told_client_id(self) -> str:
        return self.client_id or f"tandemmq-{self.name}"

    @property
    def told_addresses(self) -> tuple[tuple[Address, bool], ...]:
        """Each with whether TLS is below it."""
        return tuple((_address_of(each), each.startswith(MQTTS)) for each in self.addresses)


def _different(bridges: tuple[BridgeSettings, ...]) -> tuple[BridgeSettings, ...]:
    for what in ("name", "told_client_id"):
        found = [getattr(each, what) for each in bridges]
        for each in found:
            if found.count(each) > 1:
                raise ValueError(f"bridges of different names and client ids: {each!r} is there twice")
    return bridges


#: So many bridges there may be.
BRIDGES_MAX: Final = 100
Bridges = Annotated[tuple[BridgeSettings, ...], AfterValidator(_different), Field(max_length=BRIDGES_MAX)]
