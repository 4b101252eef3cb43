"""What becomes of the attributes and elements of ActiveMQ's broker, its connectors, usage, plugins and virtual
destinations when a configuration is converted: those that no other table of ActiveMQ's settings has.

An attribute that is accepted or mapped is carried as the setting that is named; an element that is not refused has
rules of its own in `config.from_xml`.
"""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import Property, accepted, always, fixed, mapped, never, properties, refused

_NETWORK: Final = "There are no networks of brokers: a pair or a set is one broker to its clients."
_JMX: Final = "There is no JMX: the admin server, `tandemmq` commands and metrics tell and do the same."
_USAGE: Final = "There is one budget with shares; set broker.memory_limit."
_PAIR: Final = "A standby waits for the lock in the same process, and takes over by itself."
_JAVA: Final = "A Java object; no Java code runs here."
_THREADS: Final = "There is one event loop; no thread is set up by hand."
_TEMP: Final = "A temporary destination belongs to the connection that made it, and ends with it."
_SCHEDULER: Final = "Scheduled messages wait in the same store. Those of ActiveMQ's scheduler stay where they are."
_PURGE: Final = "Idle destinations are looked for once a second: set gc_inactive_destinations in [[destinations]]."
_NOT_STORED: Final = "Nothing is spooled to disk: what is not persistent stays in memory, and its producer waits."


def _table(prefix: str, found: dict[str, Property]) -> dict[str, Property]:
    return {each.name: each for each in properties(prefix, {(name, ""): value for name, value in found.items()})}


BROKER: Final = _table(
    "broker",
    {
        "brokerName": mapped("broker.name", "Same as in ActiveMQ."),
        "populateJMSXUserID": mapped("broker.populate_jmsx_user_id", "Same as in ActiveMQ."),
        "maxSchedulerRepeatAllowed": accepted("Same as in ActiveMQ."),
        "persistent": always("A store costs what is not persistent nothing."),
        "useJmx": refused(_JMX),
        "managementContext": refused(_JMX),
        "createConnector": refused(_JMX),
        "brokerObjectName": refused(_JMX),
        "adminView": refused(_JMX),
        "mbeanInvocationTimeout": refused(_JMX),
        "populateUserNameInMBeans": refused(_JMX),
        "dataDirectory": refused("The store says where it is: set store.directory."),
        "dataDirectoryFile": refused("The store says where it is: set store.directory."),
        "tmpDataDirectory": refused(_NOT_STORED),
        "tempDataStore": refused(_NOT_STORED),
        "persistenceFactory": refused(
            "A store made by a factory. Where it is a kahaDB, write persistenceAdapter with kahaDB instead."
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
        "useLoggingForShutdownErrors": always("What goes wrong at the end is in the log."),
        "enableStatistics": always("status and metrics count; it costs nothing to have them."),
        "advisorySupport": always("Advisories are made for who listens, and for nobody else."),
        "anonymousProducerAdvisorySupport": refused("Advisories are made for who listens, and for nobody else."),
        "networkConnectors": refused(_NETWORK),
        "networkConnectorURIs": refused(_NETWORK),
        "networkConnectorStartAsync": refused(_NETWORK),
        "jmsBridgeConnectors": refused("There are no bridges to other brokers; a program of its own copies messages."),
        "proxyConnectors": refused("There is no proxy; use one of TCP in front."),
        "transportConnectorURIs": refused("Write transportConnectors, each with its uri."),
        "vmConnectorURI": refused("The broker is a process of its own: clients connect by TCP."),
        "messageAuthorizationPolicy": refused(_JAVA + " Rights are by destination: [[security.authorization]]."),
        "deleteAllMessagesOnStartup": never(
            "An empty directory is that; a setting that is forgotten would delete a store."
        ),
        "shutdownOnMasterFailure": never(_PAIR),
        "shutdownOnSlaveFailure": never(_PAIR),
        "waitForSlave": never(_PAIR),
        "waitForSlaveTimeout": refused(_PAIR),
        "passiveSlave": never(_PAIR),
        "slave": never(_PAIR),
        "masterConnectorURI": refused(_PAIR),
        "start": always("`tandemmq run` starts it."),
        "startAsync": refused("`tandemmq run` says when it is ready."),
        "startAsynch": refused("`tandemmq run` says when it is ready."),
        "keepDurableSubsActive": always("What comes while a subscriber is away waits in its window and on disk."),
        "enableMessageExpirationOnActiveDurableSubs": always("Messages expire wherever they wait."),
        "rejectDurableConsumers": never("Who may subscribe is said by rights: [[security.authorization]]."),
        "useVirtualTopics": always(
            "Topics VirtualTopic.> are virtual by default; a virtual_topic table for a name that nobody uses takes "
            "the place of that."
        ),
        "useVirtualDestSubs": never(_NETWORK),
        "useVirtualDestSubsOnCreation": never(_NETWORK),
        "useTempMirroredQueues": never(_TEMP),
        "destinationFactory": refused(_JAVA),
        "destinations": refused(
            "Destinations come about by their first use, or by a client that names them. Queues that hold something "
            "are stored."
        ),
        "useLocalHostBrokerName": refused("Without broker.name a broker is called after its host and port anyway."),
        "brokerId": refused("Ids contain the broker's name and its epoch."),
        "systemUsage": refused(_USAGE),
        "consumerSystemUsage": refused(_USAGE),
        "producerSystemUsage": refused(_USAGE),
        "producerSystemUsagePortion": refused(_USAGE),
        "consumerSystemUsagePortion": refused(_USAGE),
        "splitSystemUsageForProducersConsumers": never(_USAGE),
        "adjustUsageLimits": refused(_USAGE),
        "diskUsageCheckRegrowThreshold": refused("store.disk_reserve is what is to stay free, whatever was."),
        "monitorConnectionSplits": refused("A connection is one client's."),
        "cacheTempDestinations": never(_TEMP),
        "timeBeforePurgeTempDestinations": refused(_TEMP),
        "allowTempAutoCreationOnSend": never(_TEMP),
        "jobSchedulerStore": refused(_SCHEDULER),
        "schedulerSupport": always("It costs nothing before the first delayed message."),
        "schedulerDirectory": refused(_SCHEDULER),
        "schedulerDirectoryFile": refused(_SCHEDULER),
        "schedulePeriodForDestinationPurge": refused(_PURGE),
        "maxPurgedDestinationsPerSweep": refused(_PURGE),
        "offlineDurableSubscriberTimeout": refused("A durable subscription ends when its client says so."),
        "offlineDurableSubscriberTaskSchedule": refused("A durable subscription ends when its client says so."),
        "useAuthenticatedPrincipalForJMSXUserID": always("It is always the user who logged in."),
        "rollbackOnlyOnAsyncException": refused("It has no setting; docs/openwire.md tells of transactions."),
        "maxUncommittedCount": refused("What a transaction holds counts in the budget: broker.memory_limit."),
        "maxInflatedDataSize": refused("A compressed body is inflated as far as the length of a frame."),
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
            refused(
                "A Java object that is made elsewhere: write it as an element in the broker, to have it converted."
            ),
        ),
        "sslContext": refused(
            "A keystore of Java's. Turn it into PEM files (keytool -importkeystore … -deststoretype pkcs12, then "
            "openssl pkcs12) and name them in [tls]: certificate, key, ca."
        ),
    },
)

CONNECTOR: Final = _table(
    "connectors",
    {
        "discoveryUri": refused("Nothing is announced by multicast: clients have a failover: URL of both brokers."),
        "discoveryAgent": refused("Nothing is announced by multicast: clients have a failover: URL of both brokers."),
        "disableAsyncDispatch": never("The event loop gives out what it took in; there is no thread to save."),
        "enableStatusMonitor": never("status tells of connections that are slow or blocked anyway."),
        "updateClusterFilter": refused("One broker at a time is master: set broker.failover_uris."),
        "maximumProducersAllowedPerConnection": refused("10,000 on one connection; it has no setting."),
        "maximumConsumersAllowedPerConnection": refused("1,000 subscriptions on one connection; it has no setting."),
        "publishedAddressPolicy": refused("Set broker.failover_uris, which OpenWire clients are told."),
        "warnOnRemoteClose": refused("A connection that breaks is one line in the log."),
        "displayStackTrace": never("A refusal says what was wrong, and nothing of our inside."),
        "taskRunnerFactory": refused(_THREADS),
        "messageAuthorizationPolicy": refused(_JAVA),
        "autoStart": always("A connector listens when its broker is master."),
    },
)

#: By the scheme of a connector's URI.
SCHEMES: Final = {
    "vm": "Of one Java process; the broker is one of its own.",
    "udp": "There is no UDP: a datagram that is lost would be a message that is lost.",
    "multicast": "There is no multicast.",
    "peer": _NETWORK,
    "http": "There is no OpenWire over HTTP; use tcp or ssl.",
    "https": "There is no OpenWire over HTTP; use ssl.",
}

USAGE: Final = {
    "memoryUsage": "Set broker.memory_limit; without it, it is 40 % of the machine's memory.",
    "storeUsage": "What is to stay free on the volume is said, not what may be taken: set store.disk_reserve.",
    "tempUsage": _NOT_STORED,
    "jobSchedulerUsage": "Scheduled messages are in the same store: set store.disk_reserve.",
}

_TRACES: Final = "Advisories, the log, metrics and the journal itself (`tandemmq store inspect`) tell what was sent."
#: Plugins that are not converted, by element.
PLUGINS: Final = {
    "statisticsBrokerPlugin": "`GET /status` and `/metrics` tell it for each destination; there are no answers by "
    "message.",
    "loggingBrokerPlugin": _TRACES,
    "traceBrokerPathPlugin": _NETWORK,
    "multicastTraceBrokerPlugin": _TRACES,
    "udpTraceBrokerPlugin": _TRACES,
    "connectionDotFilePlugin": "`tandemmq status` shows connections.",
    "destinationDotFilePlugin": "`tandemmq status` shows destinations.",
    "forcePersistencyModeBrokerPlugin": "Whether a message is persistent is its sender's word.",
    "forcePersistencyModeBroker": "Whether a message is persistent is its sender's word.",
    "destinationPathSeparatorPlugin": "Names have dots.",
    "destinationsPlugin": "Destinations come about by their first use; queues that hold something are stored.",
    "virtualSelectorCacheBrokerPlugin": "Use a durable subscription with a selector: it keeps its selector while it "
    "is away.",
    "subQueueSelectorCacheBrokerPlugin": "Use a durable subscription with a selector: it keeps its selector while it "
    "is away.",
    "runtimeConfigurationPlugin": "Settings hold from a start, prefetches from SIGHUP; a handover makes a restart "
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
        "copyMessage": always("Each destination has a copy of its own."),
        "concurrentSend": refused(_ONE_WRITE),
        "transactedSend": always(_ONE_WRITE),
        "dropOnResourceLimit": never("A send without room waits or fails as a whole."),
        "setOriginalDestination": always("The original destination is always said."),
        "local": refused(_NETWORK),
    },
)

PLUGIN_POLICIES: Final = _table(
    "destinations",
    {
        "ttlCeiling": accepted(),
        "zeroExpirationOverride": accepted(),
        "futureOnly": fixed((True, False), "The time that a client says is kept."),
        "processNetworkMessages": never(_NETWORK),
        "dropAll": accepted(),
        "reportInterval": refused("Metrics count what is dropped."),
        "dropOnly": refused('Set dead_letter_strategy.type = "discarding" in [[destinations]] by pattern.'),
        "dropTemporaryTopics": refused("Set it in [[destinations]] with temp_topic = true."),
        "dropTemporaryQueues": refused("Set it in [[destinations]] with temp_queue = true."),
        "sendToDlqIfMaxRetriesExceeded": always("What came too often is a dead letter."),
        "fallbackToDeadLetter": always("What has no policy of its own is a dead letter."),
    },
)
