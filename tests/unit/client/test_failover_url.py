"""URLs of a pair of brokers."""

import itertools
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.client.failover_url import OPTIONS, Address, FailoverUrl, Treatment, UrlError

DOCS = Path(__file__).parents[3] / "docs" / "clients.md"

hosts = st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,3})?", fullmatch=True) | st.just("127.0.0.1") | st.just("::1")
addresses = st.builds(Address, hosts, st.integers(1, 65535), st.booleans())
urls = st.builds(
    FailoverUrl,
    st.lists(addresses, min_size=1, max_size=4, unique=True).map(tuple),
    initial_reconnect_delay_ms=st.integers(0, 10_000),
    max_reconnect_delay_ms=st.integers(0, 100_000),
    use_exponential_back_off=st.booleans(),
    back_off_multiplier=st.floats(1, 10),
    max_reconnect_attempts=st.integers(-1, 50),
    startup_max_reconnect_attempts=st.integers(-1, 50),
    randomize=st.booleans(),
    timeout_ms=st.integers(-1, 10_000),
    warn_after_reconnect_attempts=st.integers(-1, 20),
    connect_timeout_ms=st.integers(1, 60_000),
    heart_beat_ms=st.integers(0, 60_000),
)
unhurried = settings(deadline=None)  # a machine may be busy


@unhurried
@given(addresses)
def test_an_address_reads_back_as_it_was_written(address: Address) -> None:
    assert FailoverUrl.parse(str(address)).addresses == (address,)


@unhurried
@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_url_error(text: str) -> None:
    for candidate in (text, f"failover:({text})", f"failover:(stomp://a:1)?{text}", f"stomp://{text}"):
        try:
            FailoverUrl.parse(candidate)
        except UrlError:
            pass


@unhurried
@given(urls, st.booleans())
def test_pauses_never_pass_their_limit_and_end_with_the_rounds(url: FailoverUrl, is_first: bool) -> None:
    pauses = list(itertools.islice(url.pauses_seconds(is_first=is_first), 60))

    rounds = url.max_reconnect_attempts
    if is_first and url.startup_max_reconnect_attempts != -1:
        rounds = url.startup_max_reconnect_attempts
    if is_first:
        rounds = max(rounds, 1) if rounds != -1 else -1
        assert pauses[0] == 0
    assert all(0 <= pause * 1000 <= url.max_reconnect_delay_ms + 1e-6 for pause in pauses)
    assert len(pauses) == (60 if rounds == -1 else rounds)


@unhurried
@given(urls, st.integers())
def test_each_address_is_tried_once_a_round_and_the_one_that_was_lost_last(url: FailoverUrl, seed: int) -> None:
    order = url.order(url.addresses[0], random.Random(seed))

    assert sorted(order) == sorted(url.addresses)
    assert order[-1] == url.addresses[0]
    if not url.randomize:
        assert url.order(None, random.Random(seed)) == list(url.addresses)


def test_a_plain_url_is_one_address_tried_once() -> None:
    url = FailoverUrl.parse("stomp://broker.example:61613")

    assert url.addresses == (Address("broker.example", 61613),)
    assert list(url.pauses_seconds(is_first=True)) == [0.0]
    assert list(url.pauses_seconds(is_first=False)) == []


def test_failover_urls_are_understood_as_activemq_writes_them() -> None:
    expected = (Address("a", 61613), Address("b", 61713))

    assert FailoverUrl.parse("failover:(stomp://a:61613,stomp://b:61713)").addresses == expected
    assert FailoverUrl.parse("failover://(stomp://a,tcp://b:61713)").addresses == expected
    assert FailoverUrl.parse("failover:stomp://a:61613,stomp://b:61713").addresses == expected


def test_options_mean_what_activemq_says() -> None:
    url = FailoverUrl.parse(
        "failover:(stomp://a:1)?initialReconnectDelay=100&maxReconnectDelay=350&backOffMultiplier=2.0"
        "&maxReconnectAttempts=4&startupMaxReconnectAttempts=2&randomize=false&timeout=3000"
        "&nested.wireFormat.maxInactivityDuration=500&nested.connectionTimeout=700&warnAfterReconnectAttempts=6"
    )

    assert list(url.pauses_seconds(is_first=False)) == [0.1, 0.2, 0.35, 0.35]
    assert list(url.pauses_seconds(is_first=True)) == [0.0, 0.1]
    assert (url.randomize, url.timeout_ms, url.heart_beat_ms) == (False, 3000, 500)
    assert (url.connect_timeout_ms, url.warn_after_reconnect_attempts) == (700, 6)
    for option, pauses in (("useExponentialBackOff=FALSE", [0.01, 0.01]), ("reconnectDelayExponent=3", [0.01, 0.03])):
        other = FailoverUrl.parse(f"failover:(stomp://a:1)?{option}&maxReconnectAttempts=2")
        assert list(other.pauses_seconds(is_first=False)) == pauses


def test_defaults_are_activemqs() -> None:
    """FailoverTransport.java of 5.17."""
    assert FailoverUrl.parse("failover:(stomp://a:1)") == FailoverUrl(
        (Address("a", 1),), initial_reconnect_delay_ms=10, max_reconnect_delay_ms=30_000, back_off_multiplier=2.0,
        use_exponential_back_off=True, randomize=True, max_reconnect_attempts=-1, startup_max_reconnect_attempts=-1,
        timeout_ms=-1, warn_after_reconnect_attempts=10,
    )  # fmt: skip


# Options of FailoverTransport in a URL (its setters), and further options that users write into one.
ACTIVEMQ_OPTIONS = (
    "initialReconnectDelay", "maxReconnectDelay", "reconnectDelay", "reconnectDelayExponent", "backOffMultiplier",
    "useExponentialBackOff", "maxReconnectAttempts", "startupMaxReconnectAttempts", "timeout", "randomize", "backup",
    "backupPoolSize", "trackMessages", "trackTransactionProducers", "maxCacheSize", "priorityBackup", "priorityURIs",
    "updateURIsSupported", "updateURIsURL", "rebalanceUpdateURIs", "reconnectSupported", "warnAfterReconnectAttempts",
    "connectionInterruptProcessingTimeout", "nested.tcpNoDelay", "nested.keepAlive",
    "nested.wireFormat.maxInactivityDuration", "nested.connectionTimeout",
)  # fmt: skip


@pytest.mark.parametrize("name", ACTIVEMQ_OPTIONS)
def test_every_option_of_activemq_is_done_or_ignored_or_refused_with_its_reason(name: str) -> None:
    option = OPTIONS[name]
    text = f"failover:(stomp://a:1)?{name}=nonsense"
    if option.treatment is Treatment.REFUSED:
        with pytest.raises(UrlError, match=re.escape(option.meaning)):
            FailoverUrl.parse(text)
    elif option.treatment is Treatment.IGNORED:
        assert FailoverUrl.parse(text).remarks == (f"{name} does nothing here: {option.meaning}",)
    else:
        with pytest.raises(UrlError, match="expected"):
            FailoverUrl.parse(text)
        assert option.meaning


def test_the_table_of_the_docs_is_the_table_of_the_code() -> None:
    rows = {
        name: (treatment, meaning)
        for names, treatment, meaning in re.findall(r"^\| (`.+`) \| (\w+) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }

    assert rows == {name: (option.treatment.value, option.meaning) for name, option in OPTIONS.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("failover:()", "at least one address"),
        ("failover:(stomp://a:1", "expected failover:"),
        ("failover:(stomp://a:1)x=1", "expected failover:"),
        ("failover:(stomp://a:1)?maxReconnectAttempt=1", "'maxReconnectAttempt' is unknown"),
        ("failover:(stomp://a:1)?randomize=maybe", "true or false"),
        ("failover:(stomp://a:1)?initialReconnectDelay=-5", "milliseconds"),
        ("failover:(stomp://a:1)?maxReconnectAttempts=few", "-1 for no limit"),
        ("http://a:1", "expected stomp://host:port"),
        ("stomp://", "expected stomp://host:port"),
        ("stomp://a:99999", "[Pp]ort"),
        ("stomp://a:0", "port 0"),
        ("stomp://me:secret@a:1", "only host and port"),
        ("", "expected stomp://host:port"),
        ("wss://a:1", r"expected stomp://host:port or stomp\+ssl://host:port"),
        ("failover:(stomp://a:1?soTimeout=1)", "nested"),
        ("failover:(stomp://a:1)?updateURIsURL=file:/x", "refused: list the addresses in the URL"),
        ("failover:(stomp://a:1)?nested.soTimeout=5", "refused: only the nested options"),
        ("failover:(stomp://a:1)?jms.prefetchPolicy.all=1", "refused: an option of ActiveMQ's Java client"),
        ("failover:(stomp://a:1)?nested.connectionTimeout=0", "at least 1"),
        ("failover:(stomp://a:1)?initialReconnectDelay=99999999999999999999", "milliseconds"),
    ],
)
def test_a_bad_url_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(UrlError, match=expected):
        FailoverUrl.parse(text)
