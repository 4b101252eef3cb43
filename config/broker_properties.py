"""Conversion of the attributes and elements of ActiveMQ's broker, its connectors, usage, plugins and virtual
destinations that are in no other table of ActiveMQ's settings.

An accepted or mapped attribute becomes the named setting; an element that is not refused has separate rules in
`config.from_xml`.
"""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import Property, accepted, always, fixed, mapped, never, properties, refused

_NETWORK: Final = "There are no networks of brokers: a pair or a set is one broker to its clients."
_JMX: Final = "There is no JMX: use the admin server, `tandemmq` commands and metrics."
_USAGE: Final = "There is one budget with shares; set broker.memory_limit."
_PAIR: Final = "A standby waits for the lock in the same process, and takes over automatically."
_JAVA: Final = "A Java object; no Java code runs here."
_THREADS: Final = "There is one event loop; threads are not configurable."
_TEMP: Final = "A temporary destination belongs to the connection that created it, and ends with it."
_SCHEDULER: Final = "Scheduled messages wait in the same store. Messages of ActiveMQ's scheduler are not moved."
_PURGE: Final = "The search for idle destinations runs once a second: set gc_inactive_destinations in [[destinations]]."
_NOT_STORED: Final = "Nothing is spooled to disk: non-persistent messages stay in memory, and their producers wait."


def _table(prefix: str, found: dict[str, Property]) -> dict[str, Property]:
    return {each.name: each for each in properties(prefix, {(name, ""): value for name, value in found.items()})}


BROKER: Final = _table(
    "broker",
    {
        "brokerName": mapped("broker.name", "Same as in ActiveMQ."),
        "populateJMSXUserID": mapped("broker.populate_jmsx_user_id", "Same as in ActiveMQ."),
        "maxSchedulerRepeatAllowed": accepted("Same as in ActiveMQ."),
        "persistent": always("Non-persistent messages are never written to the store."),
        "useJmx": refused(_JMX),
        "managementContext": refused(_JMX),
        "createConnector": refused(_JMX),
        "brokerObjectName": refused(_JMX),
        "adminView": refused(_JMX),
        "mbeanInvocationTimeout": refused(_JMX),
        "populateUserNameInMBeans": refused(_JMX),
        "dataDirectory": refused("Set store.directory."),
        "dataDirectoryFile": refused("Set store.directory."),
        "tmpDataDirectory": refused(_NOT_STORED),
        "tempDataStore": refused(_NOT_STORED),
        "persistenceFactory": refused(
            "A store made by a factory. If it is a kahaDB, write persistenceAdapter with kahaDB instead."
        ),
        "taskRunnerFactory": refused(_THREADS),
        "persistenceTaskRunnerFactory": refused(_THREADS),
        "dedicatedTaskRunner": never(_THREADS),
        "taskRunnerPriority": refused(_THREADS),
        "persistenceThreadPriority": refused(_THREADS),
        "virtualThreadTaskRunner": refused(_THREADS),
        "useShutdownHook": always("SIGTERM and Ctrl-C hand over."),
        "shutdownHooks": refused(_JAVA),
        "services": refused(_JAVA),
        "useLoggingForShutdownErrors": always("Errors at the end are in the log."),
        "enableStatistics": always("Status and metrics always count, at no cost."),
        "advisorySupport": always("Advisories are made only for topics with a listener."),
        "anonymousProducerAdvisorySupport": refused("Advisories are made only for topics with a listener."),
        "networkConnectors": refused(_NETWORK),
        "networkConnectorURIs": refused(_NETWORK),
        "networkConnectorStartAsync": refused(_NETWORK),
        "jmsBridgeConnectors": refused("There are no JMS bridges; use a separate program to copy messages."),
        "proxyConnectors": refused("There is no proxy; use a TCP proxy in front."),
        "transportConnectorURIs": refused("Write transportConnectors, each with its uri."),
        "vmConnectorURI": refused("The broker is a separate process: clients connect by TCP."),
        "messageAuthorizationPolicy": refused(_JAVA + " Rights are by destination: [[security.authorization]]."),
        "deleteAllMessagesOnStartup": never("Use an empty directory; a forgotten setting would delete a store."),
        "shutdownOnMasterFailure": never(_PAIR),
        "shutdownOnSlaveFailure": never(_PAIR),
        "waitForSlave": never(_PAIR),
        "waitForSlaveTimeout": refused(_PAIR),
        "passiveSlave": never(_PAIR),
        "slave": never(_PAIR),
        "masterConnectorURI": refused(_PAIR),
        "start": always("`tandemmq run` starts it."),
        "startAsync": refused("`tandemmq run` reports when it is ready."),
        "startAsynch": refused("`tandemmq run` reports when it is ready."),
        "keepDurableSubsActive": always("Messages for an absent subscriber wait in its window and on disk."),
        "enableMessageExpirationOnActiveDurableSubs": always("Messages expire wherever they wait."),
        "rejectDurableConsumers": never("Rights control subscriptions: [[security.authorization]]."),
        "useVirtualTopics": always(
            "Topics VirtualTopic.> are virtual by default; a virtual_topic table for an unused name replaces "
            "that default."
        ),
        "useVirtualDestSubs": never(_NETWORK),
        "useVirtualDestSubsOnCreation": never(_NETWORK),
        "useTempMirroredQueues": never(_TEMP),
        "destinationFactory": refused(_JAVA),
        "destinations": refused(
            "Destinations are created at their first use, or by a client that names them. Queues with messages "
            "are stored."
        ),
        "useLocalHostBrokerName": refused("Without broker.name, the broker's name is its host and port."),
        "brokerId": refused("Ids contain the broker's name and its epoch."),
        "systemUsage": refused(_USAGE),
        "consumerSystemUsage": refused(_USAGE),
        "producerSystemUsage": refused(_USAGE),
        "producerSystemUsagePortion": refused(_USAGE),
        "consumerSystemUsagePortion": refused(_USAGE),
        "splitSystemUsageForProducersConsumers": never(_USAGE),
        "adjustUsageLimits": refused(_USAGE),
        "diskUsageCheckRegrowThreshold": refused("store.disk_reserve is the space that stays free at all times."),
        "monitorConnectionSplits": refused("A connection belongs to one client."),
        "cacheTempDestinations": never(_TEMP),
        "timeBeforePurgeTempDestinations": refused(_TEMP),
        "allowTempAutoCreationOnSend": never(_TEMP),
        "jobSchedulerStore": refused(_SCHEDULER),
        "schedulerSupport": always("It has no cost before the first delayed message."),
        "schedulerDirectory": refused(_SCHEDULER),
        "schedulerDirectoryFile": refused(_SCHEDULER),
        "schedulePeriodForDestinationPurge": refused(_PURGE),
        "maxPurgedDestinationsPerSweep": refused(_PURGE),
        "offlineDurableSubscriberTimeout": refused("A durable subscription ends when its client unsubscribes."),
        "offlineDurableSubscriberTaskSchedule": refused("A durable subscription ends when its client unsubscribes."),
        "useAuthenticatedPrincipalForJMSXUserID": always("It is always the logged-in user."),
        "rollbackOnlyOnAsyncException": refused("There is no such setting; docs/openwire.md describes transactions."),
        "maxUncommittedCount": refused("The messages of a transaction count in the budget: broker.memory_limit."),
        "maxInflatedDataSize": refused("A compressed body is inflated up to the maximum length of a frame."),
        "brokerContext": refused(_JAVA),
        "regionBroker": refused(_JAVA),
        **dict.fromkeys(
            (
                "persistenceAdapter",
                "destinationPolicy",
                "destinationInterceptors",
                "ioExceptionHandler",
                "plugins",
                "transportConnectors",
            ),
            refused("A Java object that is made elsewhere. To convert it, write it as an element in the broker."),
        ),
        "sslContext": refused(
            "A Java keystore. Convert it to PEM files (keytool -importkeystore … -deststoretype pkcs12, then "
            "openssl pkcs12) and name them in [tls]: certificate, key, ca."
        ),
    },
)

CONNECTOR: Final = _table(
    "connectors",
    {
        "discoveryUri": refused("There is no multicast discovery: clients need a failover: URL of both brokers."),
        "discoveryAgent": refused("There is no multicast discovery: clients need a failover: URL of both brokers."),
        "disableAsyncDispatch": never("The event loop delivers messages itself; there is no thread to save."),
        "enableStatusMonitor": never("Status always shows slow and blocked connections."),
        "updateClusterFilter": refused("One broker at a time is master: set broker.failover_uris."),
        "maximumProducersAllowedPerConnection": refused("The limit is 10,000 on one connection; there is no setting."),
        "maximumConsumersAllowedPerConnection": refused("The limit is 1,000 on one connection; there is no setting."),
        "publishedAddressPolicy": refused(
            "Set broker.failover_uris, which the broker sends to clients of OpenWire and AMQP."
        ),
        "warnOnRemoteClose": refused("A connection that breaks is one line in the log."),
        "displayStackTrace": never("An error gives the reason, but no internal details."),
        "taskRunnerFactory": refused(_THREADS),
        "messageAuthorizationPolicy": refused(_JAVA),
        "autoStart": always("A connector listens when its broker is master."),
    },
)

#: Conversion by the scheme of a connector's URI.
SCHEMES: Final = {
    "vm": "It works inside one Java process; the broker is a separate process.",
    "udp": "There is no UDP: a lost datagram would be a lost message.",
    "multicast": "There is no multicast.",
    "peer": _NETWORK,
    "http": "There is no OpenWire over HTTP; use tcp or ssl.",
    "https": "There is no OpenWire over HTTP; use ssl.",
}

USAGE: Final = {
    "memoryUsage": "Set broker.memory_limit; without it, it is 40 % of the machine's memory.",
    "storeUsage": "Set store.disk_reserve, the space that stays free on the volume.",
    "tempUsage": _NOT_STORED,
    "jobSchedulerUsage": "Scheduled messages are in the same store: set store.disk_reserve.",
}

_TRACES: Final = "Advisories, the log, metrics and the journal itself (`tandemmq store inspect`) show sent messages."
#: Plugins that are not converted, by element.
PLUGINS: Final = {
    "statisticsBrokerPlugin": "`GET /status` and `/metrics` have figures of each destination; there are no replies by "
    "message.",
    "loggingBrokerPlugin": _TRACES,
    "traceBrokerPathPlugin": _NETWORK,
    "multicastTraceBrokerPlugin": _TRACES,
    "udpTraceBrokerPlugin": _TRACES,
    "connectionDotFilePlugin": "`tandemmq status` shows connections.",
    "destinationDotFilePlugin": "`tandemmq status` shows destinations.",
    "forcePersistencyModeBrokerPlugin": "The sender decides whether a message is persistent.",
    "forcePersistencyModeBroker": "The sender decides whether a message is persistent.",
    "destinationPathSeparatorPlugin": "Names have dots.",
    "destinationsPlugin": "Destinations are created at their first use; queues with messages are stored.",
    "virtualSelectorCacheBrokerPlugin": "Use a durable subscription with a selector: it keeps its selector while it "
    "is away.",
    "subQueueSelectorCacheBrokerPlugin": "Use a durable subscription with a selector: it keeps its selector while it "
    "is away.",
    "runtimeConfigurationPlugin": "Settings apply from a start, prefetches from SIGHUP; a handover makes a restart "
    "short.",
    "bean": _JAVA,
}

_ONE_WRITE: Final = "All copies share their body, and one write to the disk."
VIRTUAL: Final = _table(
    "virtual_destinations",
    {
        "forwardOnly": accepted(),
        "sendWhenNotMatched": accepted(),
        "prefix": accepted(),
        "postfix": accepted(),
        "selectorAware": accepted(),
        "copyMessage": always("Each destination has its own copy."),
        "concurrentSend": refused(_ONE_WRITE),
        "transactedSend": always(_ONE_WRITE),
        "dropOnResourceLimit": never("A send without room waits, or fails as a whole."),
        "setOriginalDestination": always("The original destination is always set."),
        "local": refused(_NETWORK),
    },
)

PLUGIN_POLICIES: Final = _table(
    "destinations",
    {
        "ttlCeiling": accepted(),
        "zeroExpirationOverride": accepted(),
        "futureOnly": fixed((True, False), "The time that a client sets is kept."),
        "processNetworkMessages": never(_NETWORK),
        "dropAll": accepted(),
        "reportInterval": refused("Metrics count dropped messages."),
        "dropOnly": refused('Set dead_letter_strategy.type = "discarding" in [[destinations]] by pattern.'),
        "dropTemporaryTopics": refused("Set it in [[destinations]] with temp_topic = true."),
        "dropTemporaryQueues": refused("Set it in [[destinations]] with temp_queue = true."),
        "sendToDlqIfMaxRetriesExceeded": always("A message with too many redeliveries becomes a dead letter."),
        "fallbackToDeadLetter": always("A message without a policy of its own becomes a dead letter."),
    },
)
