"""Conversion of ActiveMQ configurations. The loader accepts the settings, and each part is converted or has a note."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemmq.config.broker_properties import BROKER, CONNECTOR
from tandemmq.config.from_xml import Converted, Logins, Missing, Note, UnreadableXml, convert
from tandemmq.config.from_xml.conversion import UNKNOWN
from tandemmq.config.from_xml.document import read
from tandemmq.config.from_xml.policies import covers
from tandemmq.config.kahadb_properties import KAHADB, LOCKER
from tandemmq.config.load import load_text
from tandemmq.config.policy_entries import POLICY_ENTRY

FIXTURES = Path(__file__).parent / "fixtures"
SHIPPED = Path("/usr/share/doc/activemq/examples/conf")
INSTANCES = Path("/etc/activemq/instances-available")
DEFINED = {"activemq.base": "/var/lib/activemq", "activemq.password": "manager"}
CORE = 'xmlns="http://activemq.apache.org/schema/core"'


def converted(name: str) -> Converted:
    return convert((FIXTURES / name).read_bytes(), name, DEFINED)


def of_broker(inside: str, attributes: str = "", **defined: str) -> Converted:
    return convert(f"<broker {CORE} {attributes}>{inside}</broker>".encode(), "a.xml", defined)


def table(found: Converted) -> dict[str, Any]:
    return tomllib.loads(found.text)


def reasons(found: Converted) -> dict[tuple[str, str], str]:
    """Return the reasons of the notes: (element, attribute) -> reason. The attribute is "" for a whole element."""
    noted: dict[tuple[str, str], str] = {}
    for note in found.notes:
        for part in note.parts or ("",):
            noted[note.path.rpartition("/")[2], part.partition("=")[0]] = note.reason
    return noted


def forgotten(raw: bytes, found: Converted) -> list[str]:
    """Return the elements, attributes and texts that are neither converted nor named in a note."""
    carried = {(path, attribute) for _, path, attribute, _ in found.carried}

    def is_noted(path: str, name: str | None) -> bool:
        for note in found.notes:
            if note.path == path and (name is None or any(part.startswith(f"{name}=") for part in note.parts)):
                return True
            inside = path.removeprefix(f"{note.path}/")
            if inside != path and (f"<{inside}>" if name is None else f"{name}=") in " ".join(note.parts):
                return True
        return False

    return [
        f"{element.path} {name}"
        for element in read(raw).walk()
        for name in (None, *element.attributes, *(["#text"] if element.text else []))
        if (element.path, name) not in carried and not is_noted(element.path, name)
    ]


# ---- every example


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.xml")), ids=lambda path: path.stem)
def test_an_example_becomes_settings_and_all_of_it_is_carried_or_told(path: Path) -> None:
    found = converted(path.name)
    load_text(found.text, path.name)
    assert forgotten(path.read_bytes(), found) == []
    for secret in ("hush", "manager", "letmein", "changeit"):
        assert secret not in found.text, "no password is written"


@pytest.mark.service
@pytest.mark.parametrize(
    "path",
    [path for path in [*sorted(SHIPPED.glob("*.xml")), *sorted(INSTANCES.glob("*/activemq.xml"))] if path.exists()]
    or [SHIPPED / "activemq.xml"],
    ids=lambda path: path.stem,
)
def test_the_configuration_of_debian_is_converted(path: Path, require_service: Any) -> None:
    require_service(path.exists(), f"no ActiveMQ: {SHIPPED} has no examples")
    raw = path.read_bytes()
    if b"<broker" not in raw:
        with pytest.raises(UnreadableXml, match=r"no <broker> in it|document type"):
            convert(raw, path.name, DEFINED)
        return
    found = convert(raw, path.name, DEFINED)
    load_text(found.text, path.name)
    assert forgotten(raw, found) == []
    assert [note for note in found.notes if note.reason == UNKNOWN] == [], "ActiveMQ ships nothing that is not known"


# ---- results of the conversion


def test_the_standard_file() -> None:
    found = converted("standard.xml")
    assert table(found) == {
        "broker": {"name": "shop"},
        "connectors": [
            {"uri": "tcp://0.0.0.0:61616?maximumConnections=1000&wireFormat.maxFrameSize=104857600"},
            {"uri": "amqp://0.0.0.0:5672?maximumConnections=1000"},
            {"uri": "stomp://0.0.0.0:61613"},
        ],
        "store": {"directory": "/var/lib/activemq/data/kahadb"},
        "destinations": [
            {
                "topic": ">",
                "pending_message_limit_strategy": {"limit": 1000},
                "dead_letter_strategy": {"type": "shared"},
            },
            {"queue": ">", "dead_letter_strategy": {"type": "shared"}},
        ],
    }
    noted = reasons(found)
    assert "40 %" in noted["memoryUsage", "percentOfJvmHeap"]
    assert "disk_reserve" in noted["storeUsage", "limit"]
    assert "transport.closeAsync" in noted["transportConnector[3]", "uri"]
    assert "--properties" in noted["bean", "class"]
    assert "serves all clients" in noted["broker", ""]


def test_notes_stand_in_the_file_with_their_lines() -> None:
    found = converted("standard.xml")
    for note in found.notes:
        assert f"#  {note}\n" in found.text
    assert 'line 22: storeUsage limit="100 gb": Set store.disk_reserve' in found.text


def test_settings_of_a_store_go_by_its_tables() -> None:
    found = converted("fast.xml")
    assert table(found)["store"] == {
        "directory": "/var/lib/activemq/data/kahadb",
        "cleanup_interval": 300000,
        "journal_max_write_batch_size": "62k",
        "journal_max_file_length": "1g",
        "index_cache_size": 100000,
        "journal_disk_sync_strategy": "never",
    }
    noted = reasons(found)
    assert "checkpoint_records" in noted["kahaDB", "indexWriteBatchSize"]
    assert noted["broker", "deleteAllMessagesOnStartup"].startswith("only false is available here")
    assert ("kahaDB", "preallocationStrategy") not in noted, "zeros are written anyway"
    assert ("policyEntry", "optimizedDispatch") not in noted


def test_several_stores() -> None:
    store = table(converted("everything.xml"))["store"]
    assert store["directory"] == "/srv/stores"
    assert store["filtered_persistence_adapters"] == [
        {"queue": "ORDERS.>", "journal_max_file_length": "8mb"},
        {"per_destination": True, "journal_disk_sync_strategy": "never"},
    ]
    noted = reasons(converted("everything.xml"))
    assert "for all stores" in noted["kahaDB", "directory"]
    assert noted["locker", "<shared-file-locker>"] == "All stores have one lock: set [locker]."
    assert "journal of transactions" in noted["mKahaDB", "journalWriteBatchSize"]
    assert table(converted("everything.xml"))["locker"] == {
        "type": "shared-file",
        "lock_acquire_sleep_interval": 5000,
        "fail_if_locked": True,
    }
    assert noted["shared-file-locker", "queryTimeout"] == "A lock of the kind shared-file does not use it."


def test_locks_as_the_customers_documents_have_them() -> None:
    assert table(converted("document_shared_file.xml")) == {
        "store": {
            "directory": "target/store",
            "failover_producers_audit_depth": 0,
            "max_failover_producers_to_track": 0,
        },
        "locker": {"type": "shared-file", "lock_keep_alive_period": 10000, "lock_acquire_sleep_interval": 5000},
    }
    database = table(converted("document_database.xml"))
    assert database["locker"] == {
        "type": "database",
        "lock_keep_alive_period": 2000,
        "lock_acquire_sleep_interval": 10000,
        "data_source": "mysql://shop@db.example:3306/shop",
    }
    assert database["store"] == {"directory": "/var/lib/activemq/data"}
    noted = reasons(converted("document_database.xml"))
    assert "no store in a database" in noted["jdbcPersistenceAdapter", ""]
    assert "TANDEMMQ_LOCKER__DATA_SOURCE" in noted["property[4]", "value"]
    lease = converted("document_lease.xml")
    assert table(lease)["locker"]["type"] == "lease-database"
    assert "fill in locker.data_source" in reasons(lease)["jdbcPersistenceAdapter", "dataSource"]
    assert table(converted("document_lease_kahadb.xml"))["locker"] == {
        "type": "lease-database",
        "lock_keep_alive_period": 5000,
        "lock_acquire_sleep_interval": 10000,
        "lease_holder_id": "one",
        "max_allowable_diff_from_db_time": 1000,
        "data_source": "postgresql://USER@HOST/DATABASE",
        "statements": {"lock_table_name": "shop_lock"},
    }
    assert "messages" in reasons(converted("document_lease_kahadb.xml"))["statements", "messageTableName"]


@pytest.mark.parametrize(("port", "expected"), [("0", "db.example"), ("5433", "db.example:5433")])
def test_a_data_source_of_postgresqls_driver(port: str, expected: str) -> None:
    found = convert(
        f"""<beans><bean id="d" class="org.postgresql.ds.PGPoolingDataSource">
        <property name="serverName" value="db.example"/><property name="databaseName"><value>shop</value></property>
        <property name="portNumber" value="{port}"/><property name="user" value="a@b"/></bean>
        <broker><persistenceAdapter><jdbcPersistenceAdapter dataSource="#d"/></persistenceAdapter></broker></beans>
        """.encode(),
        "a.xml",
        {},
    )
    assert table(found)["locker"]["data_source"] == f"postgresql://a%40b@{expected}/shop"


def test_a_replicated_set() -> None:
    found = converted("document_replicated.xml")
    assert table(found)["broker"] == {"name": "set"}
    assert table(found)["store"] == {"directory": "set-data", "journal_max_file_length": 1048576}
    assert table(found)["replication"] == {
        "replicas": 3,
        "bind": "tcp://0.0.0.0:0",
        "zk_address": "zoo1.example:2181,zoo2.example:2181",
        "zk_path": "/shop/stores",
        "hostname": "one.example",
        "sync": "quorum_mem",
        "weight": 2,
    }
    noted = reasons(found)
    assert "zk_password_file" in noted["replicatedLevelDB", "zkPassword"]
    assert "security_token_file" in noted["replicatedLevelDB", "securityToken"]
    assert "begins empty" in noted["replicatedLevelDB", ""]
    assert ("broker", "brokerName") not in noted, "it is the same on all nodes"
    assert "its own name" in reasons(converted("standard.xml"))["broker", "brokerName"]


def test_the_reason_of_each_refusal_is_told_where_several_are_wrong() -> None:
    found = of_broker(
        "<persistenceAdapter><replicatedLevelDB useLock='true' lockKeepAlivePeriod='5' replicas='99'/>"
        "</persistenceAdapter>"
    )
    noted = reasons(found)
    for name in ("useLock", "lockKeepAlivePeriod"):
        assert noted["replicatedLevelDB", name].startswith("A set chooses its master itself")
    assert noted["replicatedLevelDB", "replicas"] == "Expected at most 9."


def test_a_replicated_set_without_a_right_name_is_called_as_in_activemq() -> None:
    found = of_broker("<persistenceAdapter><replicatedLevelDB/></persistenceAdapter>", "brokerName='a b'")
    assert table(found)["broker"] == {"name": "localhost"}
    assert "letters, digits" in reasons(found)["broker", "brokerName"]


def test_policies_of_the_map_and_of_plugins_make_entries_that_hold_alone() -> None:
    found = converted("everything.xml")
    entries = {(each.get("queue"), each.get("topic")): each for each in table(found)["destinations"]}
    everywhere = {
        "ttl_ceiling": 86400000,
        "zero_expiration_override": 3600000,
        "send_fail_if_no_space_after_timeout": 3000,
    }
    for entry in entries.values():
        assert everywhere.items() <= entry.items()
    assert entries["ORDERS.>", None]["dead_letter_strategy"] == {
        "type": "individual",
        "queue_prefix": "DLQ.",
        "process_expired": False,
    }
    assert entries["ORDERS.>", None]["redelivery"] == {"maximum_redeliveries": 2}
    # The entry of the plugin has the values of the policy map for that queue.
    assert entries["ORDERS.EU", None]["queue_prefetch"] == 10
    assert entries["ORDERS.EU", None]["redelivery"] == {"maximum_redeliveries": 4, "redelivery_delay": 10000}
    for name in ("A", "B"):
        assert entries[name, None]["dead_letter_strategy"] == {"type": "shared", "dead_letter_queue": "DEAD"}
    prices = entries[None, "PRICES.*"]
    assert prices["message_eviction_strategy"] == {"type": "unique_property", "property_name": "ticker"}
    assert prices["subscription_recovery_policy"] == {"type": "timed", "recover_duration": 5000}
    assert prices["redelivery"] == {"maximum_redeliveries": 2}
    assert entries[None, ">"]["durable_topic_prefetch"] == entries[">", None]["durable_topic_prefetch"] == 7
    noted = reasons(found)
    assert "Expected a size" in noted["policyEntry", "memoryLimit"]
    assert "Java" in noted["redeliveryPlugin", ""]
    assert "checked every second" in noted["abortSlowAckConsumerStrategy", "checkPeriod"]


def test_a_name_is_closer_than_a_pattern_that_begins_with_it() -> None:
    found = of_broker(
        "<destinationPolicy><policyMap><policyEntries><policyEntry queue='A.>' queuePrefetch='1'/>"
        "<policyEntry queue='A' queuePrefetch='2'/></policyEntries></policyMap></destinationPolicy>"
    )
    prefetches = {each["queue"]: each.get("queue_prefetch") for each in table(found)["destinations"] if "queue" in each}
    assert prefetches == {"A.>": 1, "A": 2, ">": None}


def test_a_queue_policy_of_a_plugin_is_placed_beside_the_closest_policy() -> None:
    found = of_broker(
        "<destinationPolicy><policyMap><policyEntries><policyEntry queue='*.&gt;' queuePrefetch='1'/>"
        "<policyEntry queue='*' queuePrefetch='2'/></policyEntries></policyMap></destinationPolicy>"
        "<plugins><redeliveryPlugin><redeliveryPolicyMap><redeliveryPolicyMap><redeliveryPolicyEntries>"
        "<redeliveryPolicy queue='A' maximumRedeliveries='4'/></redeliveryPolicyEntries></redeliveryPolicyMap>"
        "</redeliveryPolicyMap></redeliveryPlugin></plugins>"
    )
    (entry,) = [each for each in table(found)["destinations"] if each.get("queue") == "A"]
    assert (entry["queue_prefetch"], entry["redelivery"]) == (2, {"maximum_redeliveries": 4})


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("", "shared"),
        ("<plugins><discardingDLQBrokerPlugin dropOnly='a b' reportInterval='9'/></plugins>", "discarding"),
        ("<plugins><discardingDLQBrokerPlugin dropAll='false'/></plugins>", "shared"),
    ],
)
def test_dead_letters_go_where_they_went(inside: str, expected: str) -> None:
    found = of_broker(inside)
    assert [each["dead_letter_strategy"]["type"] for each in table(found)["destinations"]] == [expected] * 2
    assert ("one queue for all dead letters" in found.text) is (expected == "shared")


def test_virtual_destinations() -> None:
    found = converted("everything.xml")
    assert table(found)["virtual_destinations"] == [
        {"virtual_topic": "EVENTS.>", "prefix": "C.*.", "selector_aware": True},
        {
            "composite_queue": "IN",
            "forward_only": False,
            "forward_to": [{"queue": "ONE"}, {"topic": "TWO"}, {"selector": "colour = 'red'", "queue": "RED"}],
        },
        {"composite_topic": "NEWS", "forward_to": [{"queue": "OLDS"}]},
        {"mirrored_queue": ">", "postfix": ".mirror", "prefix": ""},
    ]
    assert table(of_broker("", "useMirroredQueues='true'"))["virtual_destinations"] == [{"mirrored_queue": ">"}]
    twice = of_broker("<destinationInterceptors><mirroredQueue/><mirroredQueue/></destinationInterceptors>")
    assert table(twice)["virtual_destinations"] == [{"mirrored_queue": ">"}]
    assert "Only the first" in reasons(twice)["mirroredQueue[2]", ""]
    only_composite = of_broker(
        "<destinationInterceptors><virtualDestinationInterceptor><virtualDestinations><compositeQueue name='A'>"
        "<forwardTo><queue physicalName='B'/></forwardTo></compositeQueue></virtualDestinations>"
        "</virtualDestinationInterceptor></destinationInterceptors>"
    )
    assert "VirtualTopic.>" in reasons(only_composite)["destinationInterceptors", ""]


def test_options_of_a_connector_are_kept_where_they_mean_something() -> None:
    found = converted("everything.xml")
    (connector,) = table(found)["connectors"]
    assert connector == {"uri": "tcp://0.0.0.0:61616?updateClusterClients=true&maximumConnections=50"}
    noted = reasons(found)
    uri = noted["transportConnector", "uri"]
    assert "trace" in uri
    assert "wireFormat.cacheEnabled=false" in uri
    assert "keepAlive" not in uri
    assert "true or false" in noted["transportConnector", "allowLinkStealing"]
    assert "no choice" in noted["transportConnector", "rebalanceClusterClients"]
    assert "one Java process" in noted["transportConnector[2]", "uri"]


def test_a_broker_whose_connectors_all_stay_behind_listens_nowhere() -> None:
    only_vm = of_broker("<transportConnectors><transportConnector uri='vm://a'/></transportConnectors>")
    assert table(only_vm)["connectors"] == []
    assert load_text(only_vm.text, "a.xml").connectors == ()


def test_connectors_of_amqp_are_carried_with_their_options() -> None:
    uris = [
        "amqp://0.0.0.0:5672?maximumConnections=1000&amp;wireFormat.maxFrameSize=104857600&amp;transport.transformer=jms",
        "amqp+nio+ssl://0.0.0.0:5671?wireFormat.maxAmqpFrameSize=65536&amp;wireFormat.idleTimeout=60000"
        "&amp;wireFormat.connectAttemptTimeout=5000&amp;wireFormat.allowNonSaslConnections=true&amp;needClientAuth=true",
        "amqp+nio://0.0.0.0:5673?transport.producerCredit=100&amp;transport.transformer=raw&amp;transport.trace=true",
    ]
    connectors = "".join(f"<transportConnector uri='{uri}'/>" for uri in uris)
    found = of_broker(f"<transportConnectors>{connectors}</transportConnectors>")
    assert [each["uri"] for each in table(found)["connectors"]] == [
        "amqp://0.0.0.0:5672?maximumConnections=1000&wireFormat.maxFrameSize=104857600",
        "amqp+nio+ssl://0.0.0.0:5671?wireFormat.maxAmqpFrameSize=65536&wireFormat.idleTimeout=60000"
        "&wireFormat.connectAttemptTimeout=5000&wireFormat.allowNonSaslConnections=true&needClientAuth=true",
        "amqp+nio://0.0.0.0:5673",
    ]
    noted = reasons(found)["transportConnector[3]", "uri"]
    assert "credit for 500 messages" in noted
    assert "transformer=native or jms" in noted
    assert "log-level" in noted


def test_connectors_of_mqtt_and_websocket_are_carried_with_their_options() -> None:
    uris = [
        "mqtt+nio://0.0.0.0:1883?maximumConnections=7&amp;transport.subscriptionStrategy=mqtt-virtual-topic-subscriptions",
        "mqtt+ssl://0.0.0.0:8883?transport.defaultKeepAlive=60000",
        "ws://0.0.0.0:61614?wireFormat.maxFrameSize=104857600",
        "wss://0.0.0.0:61615",
    ]
    elements = "".join(f"<transportConnector uri='{uri}'/>" for uri in uris)
    found = of_broker(f"<transportConnectors>{elements}</transportConnectors>")
    assert [each["uri"] for each in table(found)["connectors"]] == [
        "mqtt+nio://0.0.0.0:1883?maximumConnections=7",
        "mqtt+ssl://0.0.0.0:8883?transport.defaultKeepAlive=60000",
        "ws://0.0.0.0:61614?wireFormat.maxFrameSize=104857600",
        "wss://0.0.0.0:61615",
    ]
    assert "shared subscriptions" in reasons(found)["transportConnector", "uri"]
    assert len(load_text(found.text, "a.xml").connectors) == 4


def test_a_store_without_a_directory_uses_the_data_directory_of_the_broker() -> None:
    attributes = "brokerName='b' dataDirectory='/d'"
    assert table(of_broker("", attributes))["store"] == {"directory": "/d/b/KahaDB"}
    kahadb = "<persistenceAdapter><kahaDB directory='/k'/></persistenceAdapter>"
    assert table(of_broker(kahadb, attributes))["store"] == {"directory": "/k"}


# ---- users and rights


def test_users_are_written_as_hashes_or_named() -> None:
    raw = (FIXTURES / "secured.xml").read_bytes()

    def line(name: str, password: str, groups: str) -> str:
        if " " in groups:
            raise ValueError("names of groups without blanks")
        return f"{name}:{password}:{groups}"

    with_users = convert(raw, "secured.xml", DEFINED, Logins(line, "/etc/tandemmq/users"))
    assert with_users.users == ("system:manager:users,admins", "guest:letmein:guests")
    assert table(with_users)["security"]["users_file"] == "/etc/tandemmq/users"
    assert "without blanks" in reasons(with_users)["authenticationUser[3]", "groups"]
    named = convert(raw, "secured.xml", {})
    assert named.users == ()
    assert "`tandemmq user add guest --groups guests --file users`" in reasons(named)["authenticationUser[2]", "groups"]


def test_rights_add_up_for_a_pattern() -> None:
    security = table(converted("secured.xml"))["security"]
    assert security["allow_anonymous"] == "true"
    assert (security["anonymous_user"], security["anonymous_group"]) == ("nobody", "strangers")
    assert security["authorization"] == [
        {"queue": ">", "read": ["admins"], "write": ["admins"], "admin": ["admins"]},
        {"queue": "GUEST.>", "read": ["guests"], "write": ["guests", "users"], "admin": ["users"]},
        {"queue": "OPEN", "read": ["guests"], "write": ["guests", "users"]},
        {
            "topic": "ActiveMQ.Advisory.>",
            "read": ["guests", "users"],
            "write": ["guests", "users"],
            "admin": ["guests", "users"],
        },
    ]


def test_denied_access_stays_denied() -> None:
    security = table(converted("directory_rights.xml"))["security"]
    assert (security["users_file"], security["allow_anonymous"]) == ("users", "false")
    assert security["authorization"] == [{"queue": ">"}, {"topic": ">"}], "nobody may do anything"
    wrong = of_broker(
        "<plugins><authorizationPlugin><map><authorizationMap><authorizationEntries>"
        "<authorizationEntry queue='A..B' read='x'/></authorizationEntries></authorizationMap></map>"
        "</authorizationPlugin></plugins>"
    )
    assert table(wrong)["security"]["authorization"] == [{"queue": ">"}, {"topic": ">"}]
    assert "words with" in reasons(wrong)["authorizationEntry", "queue"]


def test_passwords_inside_of_addresses_are_not_written_either() -> None:
    found = convert(
        b"<beans><bean id='d' class='x'><property name='url' value='jdbc:mysql://root:topsecret@db/a'/></bean><broker>"
        b"<persistenceAdapter><jdbcPersistenceAdapter dataSource='#d'/></persistenceAdapter><transportConnectors>"
        b"<transportConnector uri='ssl://h:1?transport.keyStorePassword=topsecret'/></transportConnectors></broker></beans>",
        "a.xml",
        {},
    )
    assert "topsecret" not in found.text
    assert "keyStorePassword=***" in found.text


# ---- unknown elements, and unreadable files


def test_an_unknown_element_is_named_with_its_content() -> None:
    found = of_broker("<gadget size='3'><part>text</part></gadget>", "speed='9'")
    (gadget,) = [note for note in found.notes if note.path == "broker/gadget"]
    assert gadget == Note(1, "broker/gadget", ('size="3"', "<part>", '#text="text"'), "", UNKNOWN)
    assert reasons(found)["broker", "speed"] == UNKNOWN


def test_an_element_of_another_namespace_is_not_activemqs() -> None:
    found = of_broker("<x:persistenceAdapter xmlns:x='urn:x'><x:kahaDB directory='/k'/></x:persistenceAdapter>")
    assert "store" not in table(found)
    assert forgotten(f"<broker {CORE}/>".encode(), found) == []
    assert any("{urn:x}persistenceAdapter" in note.path for note in found.notes)


def test_placeholders_need_values_where_something_is_carried() -> None:
    raw = b"<broker brokerName='${who:me}' dataDirectory='${a}/${b}' schedulerDirectory='${c}'/>"
    with pytest.raises(Missing) as missing:
        convert(raw, "a.xml", {"b": "${a}"})
    assert missing.value.names == {"a": 1, "b": 1}
    found = convert(raw, "a.xml", {"a": "/srv", "b": "${a}"})
    assert table(found)["store"]["directory"] == "/srv//srv/me/KahaDB"
    with pytest.raises(Missing):
        convert(raw, "a.xml", {"a": "${b}", "b": "${a}"})


def test_two_brokers_in_a_file_are_refused() -> None:
    with pytest.raises(UnreadableXml, match="a second <broker>"):
        convert(b"<beans><broker/><broker/></beans>", "a.xml", {})


def test_a_file_that_says_too_much_is_refused() -> None:
    raw = f"<broker>{'<gadget/>' * 20_000}</broker>".encode()
    with pytest.raises(UnreadableXml, match="the result is too large"):
        convert(raw, "a.xml", {})


def test_a_note_cannot_end_its_line_nor_move_a_cursor() -> None:
    found = of_broker("", "speed='1&#10;[broker]&#10;name=&#x9b;'")
    assert table(found).keys() == {"destinations"}
    assert "\x9b" not in found.text


# ---- random configurations


ATTRIBUTES = [found.name for found in (*KAHADB, *LOCKER, *POLICY_ENTRY)] + [*BROKER, *CONNECTOR]
ATTRIBUTES += ["uri", "name", "physicalName", "selector", "limit", "username", "password", "groups", "read", "nonsense"]
NAMES = sorted(
    {
        element.name
        for path in FIXTURES.glob("*.xml")
        for element in read(path.read_bytes()).walk()
        if element.name not in ("beans", "broker")
    }
)
VALUES = [
    "",
    "true",
    "false",
    "5",
    "-1",
    "1mb",
    ">",
    "A.B",
    "A,B",
    "a b",
    "#shop-ds",
    "tcp://h:1",
    "tcp://h:1?x=1&",
    "${a}",
]


def trees() -> st.SearchStrategy[Any]:
    attributes = st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from(VALUES), max_size=4)
    leaf = st.tuples(st.sampled_from(NAMES), attributes, st.just([]))
    return st.recursive(
        leaf, lambda inner: st.tuples(st.sampled_from(NAMES), attributes, st.lists(inner, max_size=4)), max_leaves=12
    )


def written(tree: Any) -> str:
    name, attributes, children = tree
    shown = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<{name}{shown}>{''.join(map(written, children))}</{name}>"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees(), max_size=4))
def test_each_element_has_a_result_and_the_loader_accepts_the_settings(inside: list[Any]) -> None:
    raw = f"<broker>{''.join(map(written, inside))}</broker>".encode()
    found = convert(raw, "a.xml", {"a": "1"})
    load_text(found.text, "a.xml")
    assert forgotten(raw, found) == []


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """An example with other values, and with elements that moved."""
    root = ElementTree.fromstring(draw(st.sampled_from(sorted(FIXTURES.glob("*.xml")))).read_text())
    elements = list(root.iter())
    for element in draw(st.lists(st.sampled_from(elements), max_size=6)):
        for key in element.attrib:
            element.set(key, draw(st.sampled_from([element.attrib[key], *VALUES])))
        element.set(draw(st.sampled_from(ATTRIBUTES)), draw(st.sampled_from(VALUES)))
        if len(element):
            element.append(element[0])
    return ElementTree.tostring(root)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(changed())
def test_a_changed_example_is_carried_or_told_too(raw: bytes) -> None:
    try:
        found = convert(raw, "a.xml", {**DEFINED, "a": "1"})
    except UnreadableXml:
        assert raw.count(b":broker ") + raw.count(b"<broker ") != 1
        return
    load_text(found.text, "a.xml")
    assert forgotten(raw, found) == []


@pytest.mark.parametrize(
    ("general", "special", "expected"),
    [
        (">", "A.B", True),
        ("A.>", "A", True),
        ("A.>", "A.*.C", True),
        ("A.*", "A.B", True),
        ("A.*", "A.>", False),
        ("A.*", "A.B.C", False),
        ("A.B", "A.*", False),
        ("A.B", "A", False),
    ],
)
def test_a_pattern_covers_another(general: str, special: str, expected: bool) -> None:
    assert covers(general, special) is expected
