"""Settings become the values that the engine and the listeners ask: policies, access, TLS.

What is wrong with a file that a setting names is said as of that setting (RefusedSetting).
"""

from __future__ import annotations

from broker.core.access import OpenAccess, Principal
from broker.core.policies import (
    AbortSlow,
    DeadLetterKind,
    DeadLetterStrategy,
    DestinationPolicy,
    Policies,
    PolicyEntry,
    RedeliveryPolicy,
)
from broker.security.ldap import LdapDirectory, LdapPlan
from broker.security.logins import Anonymous, Logins
from broker.security.rights import Grant, Rights
from broker.security.tls import Tls, TlsError, TlsPlan
from broker.security.users import UsersError
from config.destinations import NO_LIMIT, DestinationSettings
from config.errors import RefusedSetting
from config.security import LdapSettings, SecuritySettings
from config.settings import BrokerSettings, ConnectorSettings, Settings
from store.records.message import DestinationKind


def policies_of(settings: Settings) -> Policies:
    """What holds for each destination; [broker] says what holds where no entry does."""
    said = settings.broker
    default = DestinationPolicy(
        queue_prefetch=said.queue_prefetch,
        topic_prefetch=said.topic_prefetch,
        durable_topic_prefetch=said.durable_topic_prefetch,
        redelivery=RedeliveryPolicy(said.maximum_redeliveries),
    )
    return Policies((_entry(entry, said) for entry in settings.destinations), default)


def _entry(said: DestinationSettings, broker: BrokerSettings) -> PolicyEntry:
    kind, pattern = said.subject
    return PolicyEntry(DestinationKind[kind.upper()], pattern, _policy(said, broker))


def _policy(said: DestinationSettings, broker: BrokerSettings) -> DestinationPolicy:
    dead = said.dead_letter_strategy
    return DestinationPolicy(
        queue_prefetch=broker.queue_prefetch if said.queue_prefetch is None else said.queue_prefetch,
        queue_browser_prefetch=said.queue_browser_prefetch,
        topic_prefetch=said.topic_prefetch or broker.topic_prefetch,
        durable_topic_prefetch=said.durable_topic_prefetch or broker.durable_topic_prefetch,
        memory_limit=said.memory_limit or None,
        max_message_size=said.max_message_size or None,
        producer_flow_control=said.producer_flow_control,
        send_fail_if_no_space=said.send_fail_if_no_space,
        send_fail_if_no_space_after_timeout=_limit(said.send_fail_if_no_space_after_timeout),
        blocked_producer_warning_interval=said.blocked_producer_warning_interval,
        dead_letter=DeadLetterStrategy(
            DeadLetterKind(dead.type),
            dead_letter_queue=dead.dead_letter_queue,
            queue_prefix=dead.queue_prefix,
            queue_suffix=dead.queue_suffix,
            topic_prefix=dead.topic_prefix,
            topic_suffix=dead.topic_suffix,
            process_expired=dead.process_expired,
            process_non_persistent=dead.process_non_persistent,
            expiration=dead.expiration,
        ),
        redelivery=_redelivery(said, broker),
        expire_messages_period=said.expire_messages_period,
        ttl_ceiling=said.ttl_ceiling,
        zero_expiration_override=said.zero_expiration_override,
        prioritized_messages=said.prioritized_messages,
        all_consumers_exclusive_by_default=said.all_consumers_exclusive_by_default,
        use_consumer_priority=said.use_consumer_priority,
        pending_message_limit=_limit(said.pending_message_limit_strategy.limit),
        abort_slow=_abort_slow(said),
        auto_create=said.auto_create,
        max_destinations=_limit(said.max_destinations),
        gc_inactive_destinations=said.gc_inactive_destinations,
        inactive_timeout_before_gc=said.inactive_timeout_before_gc,
        advisory_for_consumed=said.advisory_for_consumed,
        advisory_for_delivery=said.advisory_for_delivery,
        advisory_for_discarding_messages=said.advisory_for_discarding_messages,
        advisory_for_slow_consumers=said.advisory_for_slow_consumers,
        advisory_when_full=said.advisory_when_full,
        send_advisory_if_no_consumers=said.send_advisory_if_no_consumers,
        include_body_for_advisory=said.include_body_for_advisory,
    )


def _redelivery(entry: DestinationSettings, broker: BrokerSettings) -> RedeliveryPolicy:
    said = entry.redelivery
    if said is None:
        return RedeliveryPolicy(broker.maximum_redeliveries)
    return RedeliveryPolicy(
        _limit(said.maximum_redeliveries),
        said.initial_redelivery_delay,
        said.redelivery_delay,
        said.use_exponential_back_off,
        said.back_off_multiplier,
        _limit(said.maximum_redelivery_delay),
    )


def _abort_slow(entry: DestinationSettings) -> AbortSlow | None:
    said = entry.slow_consumer_strategy
    if said is None:
        return None
    return AbortSlow(
        _limit(said.max_slow_duration),
        _limit(said.max_slow_count),
        said.max_time_since_last_ack if said.type == "abort_slow_ack_consumer" else None,
        said.ignore_idle_consumers,
        said.abort_connection,
    )


def _limit(value: int) -> int | None:
    return None if value == NO_LIMIT else value


# ---- who may


def access_of(settings: Settings) -> Logins | OpenAccess:
    """Who may connect and do what. Call ``look`` now and then, ``reload`` when asked to, ``close`` at the end.

    Raises RefusedSetting when the file of users, or the directory, cannot be had.
    """
    said = settings.security
    if not said.has_users and not said.authorization and said.allow_anonymous != "false":
        return OpenAccess(is_everywhere=said.allow_anonymous == "true")
    try:
        return Logins(
            users_file=said.users_file,
            directory=_directory(said.ldap),
            anonymous=_anonymous(said),
            rights=Rights(_grants(said)),
            failed_login_delay_seconds=said.failed_login_delay / 1000,
            failed_logins_max=said.failed_logins_max,
        )
    except UsersError as error:
        raise RefusedSetting("security.users_file", said.users_file, str(error)) from error


def _anonymous(said: SecuritySettings) -> Anonymous:
    who = Principal(said.anonymous_user, frozenset({said.anonymous_group}), is_proved=said.has_users)
    return Anonymous(said.allow_anonymous != "false", said.allow_anonymous == "true", who)


def _grants(said: SecuritySettings) -> list[Grant]:
    grants = []
    for entry in said.authorization:
        kind, pattern = entry.subject
        groups = (frozenset(names) for names in (entry.read, entry.write, entry.admin))
        grants.append(Grant(DestinationKind[kind.upper()], pattern, *groups))
    return grants


def _directory(said: LdapSettings) -> LdapDirectory | None:
    if said.connection_url is None:
        return None
    plan = LdapPlan(
        said.connection_url,
        said.user_base,
        said.user_search_matching,
        said.user_search_subtree,
        said.role_base,
        said.role_name,
        said.role_search_matching,
        said.role_search_subtree,
        username=said.connection_username,
        password=said.connection_password,
        timeout_seconds=said.connection_timeout / 1000,
        start_tls=said.start_tls,
        ca=said.ca,
    )
    try:
        return LdapDirectory(plan)
    except ImportError as error:
        reason = "ldap3 is not installed: pip install tandemmq[ldap]"
        raise RefusedSetting("security.ldap.connection_url", said.connection_url, reason) from error


# ---- TLS


def tls_of(connector: ConnectorSettings, settings: Settings) -> Tls | None:
    """The TLS of a connector; None: its scheme has none. Call ``look`` now and then, ``reload`` when asked to.

    Raises RefusedSetting when a certificate, or what belongs to it, cannot be had.
    """
    if not connector.is_tls:
        return None
    said, own = settings.tls, connector.options
    certificate = own.certificate or said.certificate
    if certificate is None:
        reason = f"a {connector.scheme} connector needs a certificate: set tls.certificate"
        raise RefusedSetting("connectors", connector.uri, reason)
    # A key belongs to its certificate: that of [tls] does not go with another one.
    key = said.key if own.certificate is None else None
    plan = TlsPlan(
        certificate,
        own.key or key,
        said.key_password_file,
        own.ca or said.ca,
        own.client_auth or said.client_auth,
        said.check_revocation,
        own.minimum_version or said.minimum_version,
        said.ciphers,
    )
    try:
        return Tls(plan)
    except TlsError as error:
        raise RefusedSetting("tls", connector.uri, str(error)) from error
