"""[[destinations]]: each attribute of policyEntry is a setting that takes effect, or is refused with the reason."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry, RedeliveryPolicy
from tandemmq.config.destinations import DestinationSettings
from tandemmq.config.errors import RefusedSetting, SettingsError, UnknownSetting
from tandemmq.config.kahadb_property import Outcome, Property
from tandemmq.config.load import load
from tandemmq.config.policy_entries import ALL, DEAD_LETTER, PENDING_LIMIT, POLICY_ENTRY, REDELIVERY, SLOW_CONSUMER
from tandemmq.config.section import section_of
from tandemmq.config.settings import Settings
from tandemmq.config.show import as_json, show
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.prove import SEED

Read = Callable[[str], Settings]


def entry(found: Property, value: object) -> str:
    *inner, name = found.key.split(".")[1:]
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    table = f"\n[destinations.{inner[0]}]" if inner else ""
    return f"[[destinations]]\nqueue = '>'{table}\n{name} = {shown}"


# ---- the table


@pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found.key}-{found.outcome.value}")
def test_every_attribute_becomes_what_the_table_says(read: Read, found: Property) -> None:
    *inner, name = (found.target or found.key).split(".")[1:]
    model = DestinationSettings if not inner else section_of(DestinationSettings.model_fields[inner[0]].annotation)
    assert model is not None
    assert (name in model.model_fields) is (found.outcome in (Outcome.ACCEPTED, Outcome.MAPPED))
    if found.outcome is Outcome.FIXED:
        holds = found.values[0]
        assert len(read(entry(found, holds)).destinations) == 1
        with pytest.raises(RefusedSetting, match="refused: only ") as refused:
            read(entry(found, not holds))
        assert found.here in str(refused.value)
        assert str(refused.value).startswith(f"{found.key.replace('destinations.', 'destinations[0].')} = ")
    elif found.outcome is Outcome.REFUSED:
        with pytest.raises(RefusedSetting) as refused:
            read(entry(found, 1))
        assert str(refused.value).endswith(f"refused: {found.here}")


def test_every_setting_is_activemqs_or_known_to_be_ours() -> None:
    accepted = {found.key for found in ALL if found.outcome is Outcome.ACCEPTED}
    ours: set[str] = set()
    for name, field in DestinationSettings.model_fields.items():
        inner = section_of(field.annotation)
        keys = [name] if inner is None else [f"{name}.{each}" for each in inner.model_fields]
        ours |= {key for key in keys if f"destinations.{key}" not in accepted}
    assert ours == {
        "max_message_size",
        "auto_create",
        "ttl_ceiling",  # of TimeStampingBrokerPlugin, as the next
        "zero_expiration_override",
        "dead_letter_strategy.type",
        "message_eviction_strategy.type",
        "subscription_recovery_policy.type",
        "slow_consumer_strategy.type",
    }


# ---- the real thing

# Of ActiveMQ 6; the one that is installed may be 5.17.
NEWER = {
    "advisoryForDispatched", "advancedNetworkStatisticsEnabled", "advancedMessageStatisticsEnabled",
    "allowTempDestinationStealing", "messageInterceptorStrategy",
}  # fmt: skip
Attributes = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def attributes(properties_of: Callable[..., Attributes]) -> Attributes:
    package = "org.apache.activemq.broker.region.policy."
    names = [
        "PolicyEntry", "SharedDeadLetterStrategy", "IndividualDeadLetterStrategy", "DiscardingDeadLetterStrategy",
        "AbortSlowConsumerStrategy", "AbortSlowAckConsumerStrategy", "ConstantPendingMessageLimitStrategy",
        "PrefetchRatePendingMessageLimitStrategy",
    ]  # fmt: skip
    return properties_of(*(package + name for name in names), "org.apache.activemq.RedeliveryPolicy")


TABLES = {
    "PolicyEntry": POLICY_ENTRY,
    "SharedDeadLetterStrategy": DEAD_LETTER,
    "IndividualDeadLetterStrategy": DEAD_LETTER,
    "DiscardingDeadLetterStrategy": DEAD_LETTER,
    "AbortSlowConsumerStrategy": SLOW_CONSUMER,
    "AbortSlowAckConsumerStrategy": SLOW_CONSUMER,
    "ConstantPendingMessageLimitStrategy": PENDING_LIMIT,
    "PrefetchRatePendingMessageLimitStrategy": PENDING_LIMIT,
    "RedeliveryPolicy": REDELIVERY,
}


@pytest.mark.service
def test_the_table_has_every_attribute_of_the_real_activemq_and_no_other(attributes: Attributes) -> None:
    for type_name, table in TABLES.items():
        assert set(attributes[type_name]) - {found.name for found in table} == set(), type_name
    for table in set(TABLES.values()):
        real = {name for type_name, its in TABLES.items() if its is table for name in attributes[type_name]}
        assert {found.name for found in table} - NEWER == real


@pytest.mark.service
def test_the_defaults_of_the_real_activemq_are_those_of_the_table(attributes: Attributes) -> None:
    compared = 0
    for type_name, table in TABLES.items():
        real = attributes[type_name]
        for found in table:
            text = found.default.strip("`")
            value = real.get(found.name, "?")
            if text == "–" or value == "?" or "@" in value:
                continue
            assert value == text, f"{type_name}.{found.name}"
            compared += 1
    assert compared > 60


# ---- read


def test_an_entry_is_read_with_the_tables_inside_of_it(read: Read) -> None:
    settings = read("""
[[destinations]]
queue = "ORDERS.>"
memory_limit = "1mb"
send_fail_if_no_space_after_timeout = "3s"
inactive_timout_before_gc = "2min"
lazy_dispatch = false
[destinations.dead_letter_strategy]
type = "SHARED"
dead_letter_queue = "DEAD"
[destinations.redelivery]
maximum_redeliveries = -1
[[destinations]]
temp_topic = true
[destinations.pending_message_limit_strategy]
limit = 7
""")
    orders, temporary = settings.destinations
    assert orders.subject == ("queue", "ORDERS.>")
    assert (orders.memory_limit, orders.send_fail_if_no_space_after_timeout) == (1 << 20, 3_000)
    assert orders.inactive_timeout_before_gc == 120_000
    assert (orders.dead_letter_strategy.type, orders.dead_letter_strategy.dead_letter_queue) == ("shared", "DEAD")
    assert orders.redelivery is not None
    assert orders.redelivery.maximum_redeliveries == -1
    assert temporary.subject == ("temp_topic", ">")
    assert temporary.pending_message_limit_strategy.limit == 7
    assert temporary.redelivery is None


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", "one of queue, topic, temp_queue and temp_topic"),
        ("queue = 'A'\ntopic = 'B'", "one of queue, topic, temp_queue and temp_topic"),
        ("queue = 'A..B'", r"destinations\[0\]\.queue = 'A\.\.B' .*expected words"),
        ("queue = 'A'\nqueuePrefetch = 1", r"Did you mean destinations\[0\]\.queue_prefetch\?"),
        ("queue = 'A'\nqueue_prefetch = -1", "a whole number"),
        ("queue = 'A'\nqueue_prefetch = 99999", "at most 32767"),
        ("queue = 'A'\nmax_destinations = -2", "a whole number, or -1"),
        ("queue = 'A'\nmax_destinations = true", "a whole number, or -1"),
        ("queue = 'A'\ninactive_timout_before_gc = 1\ninactive_timeout_before_gc = 2", "two keys are one setting"),
        ("queue = 'A'\n[[destinations]]\nqueue = 'A'", 'queue = "A" occurs twice'),
        ("queue = 'A'\nredelivery = 1", r"destinations\[0\]\.redelivery = 1 .*expected a table"),
        (
            "queue = 'A'\n[destinations.redelivery]\nmax_redeliveries = 1",
            r"Did you mean destinations\[0\]\.redelivery\.maximum_redeliveries\?",
        ),
        ("queue = 'A'\n[destinations.redelivery]\nback_off_multiplier = inf", "a number greater than 0"),
        ("queue = 'A'\n[destinations.dead_letter_strategy]\nqueue_prefix = ''", "its own dead letter queue"),
        ("queue = 'A'\n[destinations.dead_letter_strategy]\ndead_letter_queue = 'A.>'", "the name of one queue"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_key(read: Read, table: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        read(f"[[destinations]]\n{table}")


def test_entries_stand_in_the_file_alone(read: Read) -> None:
    with pytest.raises(SettingsError, match=r"tables in the file, \[\[destinations\]\]"):
        load(None, {}, ["destinations.queue=A"])
    with pytest.raises(SettingsError, match=r"a list of tables, \[\[destinations\]\]"):
        read("destinations = 1")
    with pytest.raises(UnknownSetting, match="Did you mean destinations"):
        read("[[destination]]\nqueue = 'A'")


def test_entries_are_shown_and_read_back(read: Read) -> None:
    settings = read("""
[[destinations]]
topic = "P.*"
topic_prefetch = 5
send_fail_if_no_space_after_timeout = -1
[destinations.slow_consumer_strategy]
max_slow_duration = -1
[[security.authorization]]
queue = ">"
read = "a, b"
[security.ldap]
connection_url = "ldap://h"
connection_password = "hunter2"
user_base = "dc=x"
""")
    text = show(settings)
    assert "hunter2" not in text
    assert "hunter2" not in str(as_json(settings))
    again = read(text).model_dump()
    again["security"]["ldap"]["connection_password"] = "hunter2"
    assert again == settings.model_dump()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connection_url", "ldap://h:0"), ("connection_url", "ldap://h#x"), ("user_search_matching", "(uid={1})"),
        ("role_search_matching", "(member=x)"),
    ],
)  # fmt: skip
def test_an_address_or_filter_that_can_find_nobody_is_refused(read: Read, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read(f'[security.ldap]\n{name} = "{value}"\nuser_base = "dc=x"')


# ---- Which entry holds, and how redeliveries are delayed: what ActiveMQ's own classes say of thousands of cases


CASES = 3_000

Ask = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def ask(run_java: Callable[..., list[str]]) -> Ask:
    return lambda lines: run_java("Policies.java", input="".join(f"{line}\n" for line in lines))


@pytest.mark.service
def test_the_entry_that_holds_is_activemqs(ask: Ask) -> None:
    """Without "*": of patterns with it ActiveMQ takes one by chance (docs/policies.md)."""
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    dice = random.Random(seed)
    cases = []
    for _ in range(CASES):
        patterns = set()
        for _ in range(dice.randint(1, 6)):
            words = [dice.choice("AB") for _ in range(dice.randint(1, 4))]
            patterns.add(".".join([*words[:-1], ">"] if dice.random() < 0.4 else words))
        name = ".".join(dice.choice("AB") for _ in range(dice.randint(1, 4)))
        cases.append((name, sorted(patterns, key=lambda _: dice.random())))
    theirs = ask([f"entry {name} {' '.join(patterns)}" for name, patterns in cases])
    assert len(theirs) == CASES
    found = 0
    for (name, patterns), text in zip(cases, theirs, strict=True):
        ours = Policies(PolicyEntry(DestinationKind.QUEUE, each, DestinationPolicy()) for each in patterns)
        entry = ours.entry(Destination(DestinationKind.QUEUE, name))
        assert (entry.pattern if entry else "-") == text, f"{name} among {patterns}, seed {seed}"
        found += entry is not None
    assert found > CASES // 10


@pytest.mark.service
def test_delays_are_activemqs(ask: Ask) -> None:
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    dice = random.Random(seed)
    cases = []
    for _ in range(CASES):
        most = dice.choice([None, 100, 5_000])
        factor = dice.choice([0.5, 1.0, 1.5, 2.0, 5.0])
        delays = dice.choice([0, 10, 1_000]), dice.choice([1, 70, 1_000])
        cases.append(RedeliveryPolicy(6, *delays, dice.random() < 0.7, factor, most))
    lines = [
        f"delays {one.initial_redelivery_delay} {one.redelivery_delay} {str(one.use_exponential_back_off).lower()} "
        f"{one.back_off_multiplier} {-1 if one.maximum_redelivery_delay is None else one.maximum_redelivery_delay}"
        for one in cases
    ]
    for policy, text in zip(cases, ask(lines), strict=True):
        assert " ".join(str(policy.delay(n)) for n in range(8)) == text, f"{policy}, seed {seed}"
