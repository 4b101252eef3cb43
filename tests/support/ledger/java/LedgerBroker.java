import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.region.policy.IndividualDeadLetterStrategy;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.store.kahadb.FilteredKahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.MultiKahaDBPersistenceAdapter;

/**
 * A real ActiveMQ, of 5 or of 6, over the directory of the first argument. Others say how: "archive" keeps the files
 * that are done with, "compact" moves what holds old files, "several" is three stores of mKahaDB. It prints the ports of
 * OpenWire and STOMP in one line, and ends in order when its standard input does.
 */
public final class LedgerBroker {
    private static final int FILE_LENGTH = 128 * 1024;

    public static void main(String[] arguments) throws Exception {
        List<String> options = Arrays.asList(arguments);
        BrokerService broker = new BrokerService();
        broker.setBrokerName("ledger");
        broker.setUseJmx(false);
        broker.setUseShutdownHook(false);
        broker.setSchedulerSupport(false);
        File directory = new File(arguments[0]);
        broker.setDataDirectoryFile(directory);
        if (options.contains("several")) {
            MultiKahaDBPersistenceAdapter several = new MultiKahaDBPersistenceAdapter();
            several.setDirectory(directory);
            several.setFilteredPersistenceAdapters(new ArrayList<>(
                Arrays.asList(entry("slow.>", options), entry("prices", options), entry(null, options))));
            broker.setPersistenceAdapter(several);
        } else {
            KahaDBPersistenceAdapter adapter = adapter(options);
            adapter.setDirectory(directory);
            broker.setPersistenceAdapter(adapter);
        }
        broker.getSystemUsage().getStoreUsage().setLimit(1L << 30);
        broker.getSystemUsage().getTempUsage().setLimit(1L << 28);
        PolicyEntry all = new PolicyEntry();
        all.setDeadLetterStrategy(new IndividualDeadLetterStrategy());
        PolicyMap policies = new PolicyMap();
        policies.setDefaultEntry(all);
        broker.setDestinationPolicy(policies);
        StringBuilder ports = new StringBuilder();
        for (String scheme : Arrays.asList("tcp", "stomp")) {
            String url = broker.addConnector(scheme + "://127.0.0.1:0").getPublishableConnectString();
            ports.append(url.substring(url.lastIndexOf(':') + 1)).append(' ');
        }
        broker.start();
        broker.waitUntilStarted();
        System.out.println(ports);
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        broker.stop();
        broker.waitUntilStopped();
        System.exit(0);
    }

    private static KahaDBPersistenceAdapter adapter(List<String> options) {
        KahaDBPersistenceAdapter adapter = new KahaDBPersistenceAdapter();
        adapter.setJournalMaxFileLength(FILE_LENGTH);
        adapter.setEnableJournalDiskSyncs(false);
        adapter.setCheckpointInterval(500);
        adapter.setCleanupInterval(options.contains("compact") || options.contains("archive") ? 500 : 3600_000);
        adapter.setCleanupOnStop(false);
        adapter.setArchiveDataLogs(options.contains("archive"));
        adapter.setEnableAckCompaction(options.contains("compact"));
        adapter.setCompactAcksAfterNoGC(1);
        adapter.setCompactAcksIgnoresStoreGrowth(true);
        return adapter;
    }

    private static FilteredKahaDBPersistenceAdapter entry(String queue, List<String> options) {
        FilteredKahaDBPersistenceAdapter entry = new FilteredKahaDBPersistenceAdapter();
        if (queue != null) {
            entry.setQueue(queue);
        }
        entry.setPersistenceAdapter(adapter(options));
        return entry;
    }
}
