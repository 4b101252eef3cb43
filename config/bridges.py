"""The tables [[bridges]]: topics from and to another MQTT broker, as in mosquitto's ``connection``.

A topic of a bridge is ``<local_prefix><pattern>`` here and ``<remote_prefix><pattern>`` there.
"""

from __future__ import annotations

from itertools import combinations, product, zip_longest
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config import addresses
from tandemmq.config.addresses import Address
from tandemmq.config.mqtt import TWO_BYTES_MAX
from tandemmq.config.section import AnyCase, Count, Listed, Milliseconds, Path, Section

MQTT: Final = "mqtt://"
MQTTS: Final = "mqtts://"
#: MQTT's strings have up to 64 KiB; a client id longer than this does not fit into a queue's name.
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
    """Return whether a topic exists that both filters match."""
    for mine, theirs in zip_longest(one.split("/"), other.split("/")):
        if mine == "#" or theirs == "#":
            return True
        if mine is None or theirs is None or (mine != theirs and "+" not in (mine, theirs)):
            return False
    return True


Prefix = Annotated[str, AfterValidator(_prefix)]


class BridgeTopicSettings(Section):
    pattern: Annotated[str, AfterValidator(_pattern)]
    """MQTT topic filter, after the prefixes."""
    direction: Annotated[Literal["in", "out", "both"], AnyCase] = "out"
    """`in`: from the other broker. `out`: to it. `both`."""
    qos: Literal[0, 1, 2] = 1
    """QoS that the bridge requests and the highest that it sends: 2, exactly once; 1, at least once; 0, at most
    once."""
    local_prefix: Prefix = ""
    """Text before the pattern on this broker."""
    remote_prefix: Prefix = ""
    """Text before the pattern on the other broker."""

    @property
    def local(self) -> str:
        """Topic filter on this broker."""
        return self.local_prefix + self.pattern

    @property
    def remote(self) -> str:
        """Topic filter on the other broker."""
        return self.remote_prefix + self.pattern

    @property
    def is_in(self) -> bool:
        return self.direction != "out"

    @property
    def is_out(self) -> bool:
        return self.direction != "in"


class BridgeTlsSettings(Section):
    ca: Path | None = None
    """Certificates (PEM) that may sign that of the other broker. Default: those of the system."""
    certificate: Path | None = None
    """Certificate of the bridge (PEM)."""
    key: Path | None = None
    """Private key of the certificate (PEM). Default: in the certificate file."""
    key_password_file: Path | None = None
    """File with the password of the key."""


class BridgeSettings(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name of the bridge: letters, digits, `.`, `_` and `-`. Its stored state has this name."""
    addresses: Annotated[tuple[Annotated[str, AfterValidator(_uri)], ...], Listed, Field(min_length=1)]
    """The other broker, `mqtt://HOST:PORT` or `mqtts://HOST:PORT`; several are tried in turn."""
    client_id: Annotated[str, Field(max_length=CLIENT_ID_CHARACTERS_MAX)] = ""
    """Client id on the other broker, the same on all brokers of a pair. Default: `tandemmq-<name>`."""
    username: str | None = None
    """User on the other broker."""
    password: str | None = None
    """Password of the user; prefer `password_file`."""
    password_file: Path | None = None
    """File with the password, read at each connect."""
    tls: BridgeTlsSettings = BridgeTlsSettings()
    """For `mqtts://`."""
    protocol_version: Literal["3.1.1", "5"] = "5"
    """Version of MQTT."""
    bridge_mode: bool = False
    """Connect as a bridge, like mosquitto's `try_private`: a mosquitto then does not send back what came from here,
    also with MQTT 3.1.1. Other brokers refuse such a connection."""
    keep_alive: Milliseconds = Field(60 * SECOND, ge=5 * SECOND, le=TWO_BYTES_MAX * SECOND)
    """Silence after which the bridge pings the other broker."""
    max_inflight_messages: Count = Field(100, ge=1, le=10_000)
    """Maximum number of unconfirmed messages of QoS 1 and 2 in each direction."""
    restart_timeout: Milliseconds = Field(1 * SECOND, ge=100)
    """Pause after all addresses failed; it doubles each time."""
    restart_timeout_max: Milliseconds = Field(30 * SECOND, ge=100)
    """Longest pause."""
    topics: Annotated[tuple[BridgeTopicSettings, ...], Field(min_length=1, max_length=1_000)]

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password or password_file, not both")
        if self.password_given and self.username is None:
            raise ValueError("a username beside the password")
        if self.bridge_mode and self.protocol_version != "3.1.1":
            raise ValueError('bridge_mode only with protocol_version = "3.1.1"; MQTT 5 does not need it')
        ins = [each for each in self.topics if each.is_in]
        outs = [each for each in self.topics if each.is_out]
        for one, other in combinations(ins, 2):
            if meet(one.remote, other.remote):
                raise ValueError(f"each incoming topic once: {one.remote} and {other.remote} overlap")
        for one, other in combinations(outs, 2):
            if meet(one.local, other.local):
                raise ValueError(f"each outgoing topic once: {one.local} and {other.local} overlap")
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
    def used_client_id(self) -> str:
        return self.client_id or f"tandemmq-{self.name}"

    @property
    def parsed_addresses(self) -> tuple[tuple[Address, bool], ...]:
        """Addresses, each with whether TLS is used."""
        return tuple((_address_of(each), each.startswith(MQTTS)) for each in self.addresses)


def _different(bridges: tuple[BridgeSettings, ...]) -> tuple[BridgeSettings, ...]:
    for what in ("name", "used_client_id"):
        found = [getattr(each, what) for each in bridges]
        for each in found:
            if found.count(each) > 1:
                raise ValueError(f"bridges of different names and client ids: {each!r} occurs twice")
    return bridges


#: Maximum number of bridges.
BRIDGES_MAX: Final = 100
Bridges = Annotated[tuple[BridgeSettings, ...], AfterValidator(_different), Field(max_length=BRIDGES_MAX)]
