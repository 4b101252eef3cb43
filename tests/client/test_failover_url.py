"""URLs of a pair of brokers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.failover import Address, FailoverUrl, UrlError

hosts = st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,3})?", fullmatch=True) | st.just("127.0.0.1") | st.just("::1")
addresses = st.builds(Address, hosts, st.integers(1, 65535))
urls = st.builds(
    FailoverUrl,
    st.lists(addresses, min_size=1, max_size=4).map(tuple),
    initial_reconnect_delay_ms=st.integers(0, 10_000),
    max_reconnect_delay_ms=st.integers(0, 100_000),
    use_exponential_back_off=st.booleans(),
    back_off_multiplier=st.floats(1, 10),
    max_reconnect_attempts=st.integers(-1, 50),
    randomize=st.booleans(),
    timeout_ms=st.integers(-1, 10_000),
)


@given(urls)
def test_a_url_reads_back_as_it_was_written(url: FailoverUrl) -> None:
    assert FailoverUrl.parse(str(url)) == url


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_url_error(text: str) -> None:
    for candidate in (text, f"failover:({text})", f"failover:(stomp://a:1)?{text}", f"stomp://{text}"):
        try:
            FailoverUrl.parse(candidate)
        except UrlError:
            pass


@given(urls)
def test_delays_never_pass_their_limit_and_end_with_the_attempts(url: FailoverUrl) -> None:
    delays = list(itertools.islice(url.delays_seconds(), 60))

    assert all(0 <= delay * 1000 <= url.max_reconnect_delay_ms + 1e-6 for delay in delays)
    assert len(delays) == (60 if url.max_reconnect_attempts == -1 else url.max_reconnect_attempts)


def test_a_plain_url_is_one_address_tried_once() -> None:
    url = FailoverUrl.parse("stomp://broker.example:61613")

    assert url.addresses == (Address("broker.example", 61613),)
    assert list(url.delays_seconds()) == []


def test_failover_urls_are_understood_as_activemq_writes_them() -> None:
    expected = (Address("a", 61613), Address("b", 61713))

    assert FailoverUrl.parse("failover:(stomp://a:61613,stomp://b:61713)").addresses == expected
    assert FailoverUrl.parse("failover://(stomp://a,tcp://b:61713)").addresses == expected
    assert FailoverUrl.parse("failover:stomp://a:61613,stomp://b:61713").addresses == expected


def test_options_mean_what_activemq_says() -> None:
    url = FailoverUrl.parse(
        "failover:(stomp://a:1)?initialReconnectDelay=100&maxReconnectDelay=350&backOffMultiplier=2.0"
        "&maxReconnectAttempts=4&randomize=false&timeout=3000"
    )

    assert list(url.delays_seconds()) == [0.1, 0.2, 0.35, 0.35]
    assert not url.randomize
    assert url.timeout_ms == 3000
    assert list(
        FailoverUrl.parse("failover:(stomp://a:1)?useExponentialBackOff=FALSE&maxReconnectAttempts=2").delays_seconds()
    ) == [
        0.01,
        0.01,
    ]


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
        ("stomp://me:secret@a:1", "nothing but host and port"),
        ("", "expected stomp://host:port"),
    ],
)
def test_a_bad_url_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(UrlError, match=expected):
        FailoverUrl.parse(text)
