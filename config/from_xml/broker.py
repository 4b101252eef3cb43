"""Conversion of the broker element, and of the elements around it in Spring's file.

Transport connectors become [[connectors]], with the options of their URIs that are available here; destination
interceptors become [[virtual_destinations]].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from tandemmq.config import addresses
from tandemmq.config.broker_properties import BROKER, CONNECTOR, PLUGINS, SCHEMES, VIRTUAL
from tandemmq.config.destinations import ForwardSettings
from tandemmq.config.from_xml import security, stores
from tandemmq.config.from_xml.conversion import ACTIVEMQ_NAME, ANYWAY, INSIDE, Conversion, Table
from tandemmq.config.from_xml.document import Element, UnreadableXml
from tandemmq.config.from_xml.policies import Policies
from tandemmq.config.kahadb_properties import GROUPS
from tandemmq.config.kahadb_property import Property
from tandemmq.config.store import HANDLER

_KNOWN: Final[dict[str, Property]] = {**{found.name: found for found in GROUPS["Broker"]}, **BROKER}
_HANDLER: Final = {found.name: found for found in HANDLER}
_PLACEHOLDERS: Final = "Set values of ${…} with --define NAME=VALUE, and --properties FILE for each of its files."
_IMPORT: Final = "Another file: convert it separately if it has a broker. Web servers and Camel are not converted."
_BEAN: Final = "A Java object; no Java code runs here."
_NAME: Final = "Each broker of a pair needs its own name: set the other one's, for example with --name."
_ANONYMOUS: Final = (
    "ActiveMQ without an authentication plugin serves all clients. Here clients of other machines are refused until "
    '[security] defines users (docs/security.md); allow_anonymous = "true" serves all clients.'
)
#: Elements that may be the root of a partial document.
_PARTS: Final = ("persistenceAdapter", "destinationPolicy", "plugins", "systemUsage", "transportConnectors")
_PLACEHOLDER_CLASS: Final = "PropertyPlaceholderConfigurer"


class Rules:
    """Conversion rules by element, and their shared state."""

    def __init__(self, work: Conversion, logins: security.Logins) -> None:
        self._work: Final = work
        self._logins: Final = logins
        self._policies: Final = Policies(work)
        self._beans: dict[str, Element] = {}
        self.users: Final[list[str]] = []

    def document(self, root: Element) -> None:
        """Convert a document. Raises UnreadableXml when it is no configuration of ActiveMQ."""
        self._beans = {
            each.attributes["id"]: each for each in root.walk() if each.name == "bean" and "id" in each.attributes
        }
        brokers = [each for each in root.walk() if each.name == "broker"]
        if brokers:
            if len(brokers) > 1:
                raise UnreadableXml(
                    f"line {brokers[1].line}: a second <broker>: each needs its own file here, so remove one"
                )
            self._around(root, brokers[0])
        elif root.name in _PARTS:
            self._part(root)
        elif not stores.store(self._work, root, self._beans):
            raise UnreadableXml(f"<{root.name}> is no configuration of ActiveMQ: there is no <broker> in it")
        self._policies.finish(is_whole=bool(brokers))
        if self._logins.config is not None:
            security.others(self._work, self._logins.config)

    def _around(self, root: Element, broker: Element) -> None:
        if root is broker:
            self._broker(broker)
            return
        self._work.wrap(root)
        # The broker first: it decides which beans are used.
        for child in sorted(root.children, key=lambda each: each is not broker):
            if child is broker:
                self._broker(child)
            elif child.name == "import":
                self._work.leave(child, None, _IMPORT)
            elif child.name == "bean" and (child.number, None) not in self._work.fates:
                is_placeholder = child.attributes.get("class", "").endswith(_PLACEHOLDER_CLASS)
                self._work.leave(child, None, _PLACEHOLDERS if is_placeholder else _BEAN)
            elif broker in child.walk():
                self._around(child, broker)

    def _broker(self, element: Element) -> None:
        work = self._work
        is_closed = any(each.name.lower().endswith("authenticationplugin") for each in element.walk())
        work.became(element, None, "broker", "" if is_closed else _ANONYMOUS)
        for name, found in _KNOWN.items():
            if name in element.attributes:
                work.carry_known(element, name, found, work.settings)
        is_set = any(each.name == "replicatedLevelDB" for each in element.walk())
        if "brokerName" in element.attributes and not is_set:  # all nodes of a set have one name
            work.became(element, "brokerName", "broker.name", _NAME)
        if "useMirroredQueues" in element.attributes:
            if work.value(element, "useMirroredQueues").lower() == "true":
                mirrored(work, element, "useMirroredQueues")
            else:
                work.became(element, "useMirroredQueues", ANYWAY)
        for child in element.children:
            self._part(child)
        self._store_directory(element)

    def _part(self, element: Element) -> None:
        rules: Mapping[str, Callable[[Element], None]] = {
            "persistenceAdapter": lambda each: stores.persistence_adapter(self._work, each, self._beans),
            "destinationPolicy": self._policies.policy,
            "systemUsage": self._policies.usage,
            "transportConnectors": lambda each: transport_connectors(self._work, each),
            "destinationInterceptors": lambda each: interceptors(self._work, each),
            "plugins": self._plugins,
            "ioExceptionHandler": self._exception_handler,
        }
        rule = rules.get(element.name)
        if rule is not None:
            rule(element)
        elif element.name in _KNOWN:
            self._work.leave(element, None, _KNOWN[element.name].here)

    def _plugins(self, holder: Element) -> None:
        self._work.wrap(holder)
        rules: Mapping[str, Callable[[Element], None]] = {
            "simpleAuthenticationPlugin": self._users,
            "jaasAuthenticationPlugin": self._jaas,
            "jaasCertificateAuthenticationPlugin": self._jaas,
            "jaasDualAuthenticationPlugin": self._jaas,
            "authorizationPlugin": lambda each: security.authorization(self._work, each),
            "timeStampingBrokerPlugin": self._policies.time_stamps,
            "discardingDLQBrokerPlugin": self._policies.discard,
            "redeliveryPlugin": self._policies.redeliver,
        }
        for element in holder.children:
            rule = rules.get(element.name)
            if rule is not None:
                rule(element)
            elif element.name in PLUGINS:
                self._work.leave(element, None, PLUGINS[element.name])

    def _users(self, element: Element) -> None:
        security.authentication(self._work, element, self.users, self._logins)

    def _jaas(self, element: Element) -> None:
        security.jaas(self._work, element, self.users, self._logins)

    def _exception_handler(self, holder: Element) -> None:
        self._work.wrap(holder)
        found = _HANDLER["ioExceptionHandler"]
        for element in holder.children:
            if element.name.lower() in found.values:
                self._work.became(element, None, ANYWAY)
            else:
                self._work.became(element, None, INSIDE, found.here)
            self._work.carry_all(element, _HANDLER, self._work.settings)

    def _store_directory(self, element: Element) -> None:
        """Set ActiveMQ's default directory of a kahaDB without one: below the broker's data directory."""
        store = self._work.settings.table("store")
        if "dataDirectory" not in element.attributes or "directory" in store.values:
            return
        # A broker without any persistenceAdapter has a kahaDB.
        adapters = [child for child in element.children if child.name == "persistenceAdapter"]
        kinds = {each.name for adapter in adapters for each in adapter.children}
        if kinds <= {"kahaDB"}:
            name = self._work.value(element, "brokerName") if "brokerName" in element.attributes else ACTIVEMQ_NAME
            data = self._work.value(element, "dataDirectory")
            self._work.fates.pop((element.number, "dataDirectory"), None)
            self._work.carry(element, "dataDirectory", store, "directory", f"{data}/{name}/KahaDB")


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


_KINDS: Final = {
    "virtualTopic": "virtual_topic",
    "compositeQueue": "composite_queue",
    "compositeTopic": "composite_topic",
}
_TWICE: Final = "Only the first entry of a pattern is converted."
_STILL_VIRTUAL: Final = (
    "In ActiveMQ, configured interceptors replace the virtual topics VirtualTopic.>. Here those are "
    "virtual until a virtual_topic table defines others."
)
_FORWARD: Final = "Messages are forwarded to a queue or a topic of a fixed name."


def interceptors(work: Conversion, holder: Element) -> None:
    work.wrap(holder)
    for element in holder.children:
        if element.name == "virtualDestinationInterceptor":
            work.wrap(element)
            for wrapper in work.children(element, "virtualDestinations"):
                for virtual in work.children(wrapper, *_KINDS):
                    _virtual(work, virtual, _KINDS[virtual.name])
        elif element.name == "mirroredQueue":
            mirrored(work, element, None)
    if not any(each.name == "virtualTopic" for each in holder.walk()):
        work.became(holder, None, INSIDE, _STILL_VIRTUAL)


def mirrored(work: Conversion, element: Element, attribute: str | None) -> None:
    """Mirror all queues: by an interceptor of its own, or by the broker's attribute."""
    table = _table(work, element, attribute, "mirrored_queue", ">")
    if table is not None and attribute is None:
        work.carry_all(element, VIRTUAL, table, "virtual_destinations.")


def _table(work: Conversion, element: Element, attribute: str | None, kind: str, pattern: str) -> Table | None:
    known: list[Table] = work.settings.values.get("virtual_destinations", [])
    if any(each.values.get(kind) == pattern for each in known):
        work.leave(element, attribute, _TWICE)
        return None
    table = work.settings.add("virtual_destinations", (element, attribute))
    work.carry(element, attribute, table, kind, pattern)
    return table


def _virtual(work: Conversion, element: Element, kind: str) -> None:
    pattern = work.value(element, "name") if "name" in element.attributes else ">"
    table = _table(work, element, None, kind, pattern)
    if table is None:
        return
    if "name" in element.attributes:
        work.carry(element, "name", table, kind)
    work.carry_all(element, VIRTUAL, table, "virtual_destinations.")
    for holder in element.children:
        if holder.name == "forwardTo":
            work.wrap(holder)
            for each in holder.children:
                _forward(work, each, table)


def _forward(work: Conversion, element: Element, table: Table) -> None:
    places: dict[str, str] = {}
    if element.name in ("queue", "topic"):
        places = {"physicalName": element.name, "name": element.name}
    elif element.name == "filteredDestination":
        places = {"queue": "queue", "topic": "topic", "selector": "selector"}
    given: dict[str, Any] = {name: key for name, key in places.items() if name in element.attributes}
    if not set(given.values()) & {"queue", "topic"}:
        work.leave(element, None, _FORWARD)
        return
    forward = table.add("forward_to", (element, None), ForwardSettings)
    for name, key in given.items():
        work.carry(element, name, forward, key)
