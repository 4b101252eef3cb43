"""Where what a part does by itself is also a setting, both are the same."""

from __future__ import annotations

import inspect

from tandemmq.broker.core.virtual_destinations import Mirrored, VirtualTopic
from tandemmq.broker.ha.mastership import BACK_OFF_SECONDS_MAX
from tandemmq.broker.security.logins import Logins
from tandemmq.broker.settings.virtual_destinations import virtual_destinations
from tandemmq.cli.client import DEFAULT_URL
from tandemmq.cli.status import DEFAULT_ADMIN
from tandemmq.config.load import load
from tandemmq.config.locker import KUBERNETES, ZOOKEEPER, LockerSettings
from tandemmq.config.virtual_destinations import VirtualDestinationSettings
from tandemmq.locker.contract import Holder, LockRequest
from tandemmq.locker.kubernetes.lease import KubernetesSettings
from tandemmq.locker.zookeeper.locker import ZooKeeperSettings

SETTINGS = load(None, {})


def test_a_broker_that_was_demoted_waits_as_the_settings_say() -> None:
    assert SETTINGS.locker.retry_interval / 1000 == BACK_OFF_SECONDS_MAX


def test_logins_fail_as_the_settings_say() -> None:
    usual = inspect.signature(Logins).parameters
    assert usual["failed_login_delay_seconds"].default == SETTINGS.security.failed_login_delay / 1000
    assert usual["failed_logins_max"].default == SETTINGS.security.failed_logins_max


def test_virtual_destinations_are_called_as_the_settings_say() -> None:
    (topic,) = virtual_destinations([VirtualDestinationSettings(virtual_topic=VirtualTopic().pattern)]).virtual_topics
    assert topic == VirtualTopic()
    assert VirtualDestinationSettings(mirrored_queue=">").named_prefix == Mirrored(">").prefix


def request(options: dict[str, object]) -> LockRequest:
    return LockRequest("/nowhere", Holder("a"), options=options)


def test_zookeeper_is_asked_as_the_settings_say() -> None:
    hosts = {"hosts": "127.0.0.1:2181"}
    options = LockerSettings.model_validate({"type": ZOOKEEPER, "zookeeper": hosts}).kind_options()
    assert options.keys() > hosts.keys()
    assert ZooKeeperSettings.of(request(dict(hosts))) == ZooKeeperSettings.of(request(options))


def test_kubernetes_is_asked_as_the_settings_say() -> None:
    pod = {"server": "https://127.0.0.1:1", "namespace": "n"}
    options = LockerSettings.model_validate({"type": KUBERNETES, "kubernetes": pod}).kind_options()
    assert options.keys() > pod.keys()
    assert KubernetesSettings.of(request(dict(pod)), {}) == KubernetesSettings.of(request(options), {})


def test_commands_ask_where_a_broker_listens_by_itself() -> None:
    assert SETTINGS.admin.uri == DEFAULT_ADMIN
    assert f"failover:({SETTINGS.connectors[0].uri})" == DEFAULT_URL
