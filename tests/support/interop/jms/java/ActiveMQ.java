import java.io.File;
import java.util.ArrayList;
import java.util.List;

import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.region.policy.FixedCountSubscriptionRecoveryPolicy;
import org.apache.activemq.broker.region.policy.IndividualDeadLetterStrategy;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.broker.region.policy.VMPendingQueueMessageStoragePolicy;
import org.apache.activemq.store.SharedFileLocker;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/**
 * A real ActiveMQ over the directory of the first argument, with OpenWire (on the port of the second argument,
 * if there is one) and STOMP on free ports of 127.0.0.1, which it prints as "openwire port" and "stomp port" as soon as
 * it is master. A third argument is the port of MQTT. It ends when its standard input does.
 *
 * Its policies are what TandemMQ does by itself (individual dead letters), and for names that say so: queues below
 * PRIORITY. keep priorities, below LIMITED. a producer is stopped at 64 KiB, PULL. consumers are given nothing ahead, SHORT. looks for expired messages each
 * 200 ms, FULL. looks through the whole queue for browsers and selectors, TOLD. advises of all that can be advised of.
 */
public final class ActiveMQ {
    public static void main(String[] arguments) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setBrokerName("peer");
        broker.setUseJmx(false);
        broker.setUseShutdownHook(false);
        broker.setDataDirectoryFile(new File(arguments[0]));
        broker.setSchedulerSupport(true);
        KahaDBPersistenceAdapter adapter = new KahaDBPersistenceAdapter();
        adapter.setDirectory(new File(arguments[0], "kahadb"));
        adapter.setEnableJournalDiskSyncs(false);
        SharedFileLocker locker = new SharedFileLocker();
        locker.setLockAcquireSleepInterval(200);
        adapter.setLocker(locker);
        broker.setPersistenceAdapter(adapter);
        broker.getSystemUsage().getStoreUsage().setLimit(1L << 30);
        broker.getSystemUsage().getTempUsage().setLimit(1L << 28);
        broker.getSystemUsage().getJobSchedulerUsage().setLimit(1L << 28);

        List<PolicyEntry> entries = new ArrayList<>();
        entries.add(queue("PRIORITY.>"));
        entries.get(0).setPrioritizedMessages(true);
        PolicyEntry limited = queue("LIMITED.>");
        limited.setMemoryLimit(64 * 1024);
        limited.setProducerFlowControl(true);
        limited.setPendingQueuePolicy(new VMPendingQueueMessageStoragePolicy()); // or it spools, and blocks nobody
        entries.add(limited);
        PolicyEntry pulled = queue("PULL.>");
        pulled.setQueuePrefetch(0);
        entries.add(pulled);
        PolicyEntry brief = queue("SHORT.>");
        brief.setExpireMessagesPeriod(200);
        entries.add(brief);
        PolicyEntry full = queue("FULL.>");
        full.setMaxPageSize(Integer.MAX_VALUE); // or a selector is asked about the first 200 alone
        full.setMaxBrowsePageSize(Integer.MAX_VALUE); // or a browser sees 400
        entries.add(full);
        PolicyEntry told = queue("TOLD.>");
        told.setSendAdvisoryIfNoConsumers(true);
        tell(told);
        entries.add(told);
        PolicyEntry toldTopics = new PolicyEntry();
        toldTopics.setTopic("TOLD.>");
        toldTopics.setSendAdvisoryIfNoConsumers(true);
        tell(toldTopics);
        entries.add(toldTopics);
        PolicyEntry toldVirtual = new PolicyEntry();
        toldVirtual.setTopic("VirtualTopic.TOLD.>");
        tell(toldVirtual);
        entries.add(toldVirtual);
        PolicyEntry kept = new PolicyEntry();
        kept.setTopic("KEPT.>");
        FixedCountSubscriptionRecoveryPolicy two = new FixedCountSubscriptionRecoveryPolicy();
        two.setMaximumSize(2);
        kept.setSubscriptionRecoveryPolicy(two);
        entries.add(kept);
        PolicyEntry strict = queue("STRICT.>");
        strict.setUsePrefetchExtension(false);
        entries.add(strict);
        PolicyMap policies = new PolicyMap();
        policies.setPolicyEntries(entries);
        PolicyEntry all = new PolicyEntry();
        all.setDeadLetterStrategy(new IndividualDeadLetterStrategy());
        policies.setDefaultEntry(all);
        broker.setDestinationPolicy(policies);

        String openwire = broker.addConnector("tcp://127.0.0.1:" + (arguments.length > 1 ? arguments[1] : "0")).getPublishableConnectString();
        String stomp = broker.addConnector("stomp://127.0.0.1:0").getPublishableConnectString();
        if (arguments.length > 2) {
            broker.addConnector("mqtt://127.0.0.1:" + arguments[2]);
        }
        broker.start();
        broker.waitUntilStarted();
        System.out.println("openwire " + openwire.substring(openwire.lastIndexOf(':') + 1));
        System.out.println("stomp " + stomp.substring(stomp.lastIndexOf(':') + 1));
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }

    private static PolicyEntry queue(String pattern) {
        PolicyEntry entry = new PolicyEntry();
        entry.setQueue(pattern);
        entry.setDeadLetterStrategy(new IndividualDeadLetterStrategy());
        return entry;
    }

    private static void tell(PolicyEntry entry) {
        entry.setAdvisoryForConsumed(true);
        entry.setAdvisoryForDelivery(true);
        entry.setAdvisoryForDiscardingMessages(true);
        entry.setAdvisoryForFastProducers(true);
        entry.setAdvisoryForSlowConsumers(true);
        entry.setAdvisoryWhenFull(true);
    }
}
