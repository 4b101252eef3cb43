package org.apache.activemq.broker;

import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.activemq.Service;
import org.apache.activemq.broker.jmx.BrokerView;
import org.apache.activemq.broker.jmx.ManagementContext;
import org.apache.activemq.broker.region.Destination;
import org.apache.activemq.broker.region.DestinationInterceptor;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.broker.scheduler.JobSchedulerStore;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.network.NetworkConnector;
import org.apache.activemq.store.PersistenceAdapter;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.store.memory.MemoryPersistenceAdapter;
import org.apache.activemq.thread.TaskRunnerFactory;
import org.apache.activemq.usage.SystemUsage;
import org.apache.activemq.util.IOExceptionHandler;

import outside.DoesNotApply;
import outside.Facts;
import outside.Outside;

/**
 * Replaces ActiveMQ's class of this name in the class path of its tests. It records what the tests set, and start()
 * starts a broker with these settings in another process. A test that uses the inside of the broker gets DoesNotApply,
 * or calls a method that does not exist here.
 */
public class BrokerService implements Service {
    public static final String DEFAULT_PORT = "61616";
    public static final String LOCAL_HOST_NAME = "localhost";
    public static final String BROKER_VERSION = "5";
    public static final String DEFAULT_BROKER_NAME = "localhost";

    private String name = DEFAULT_BROKER_NAME;
    private boolean persistent = true;
    private boolean deletes;
    private boolean advisories = true;
    private boolean scheduler;
    private boolean userIds;
    private int repeats = 1000;
    private File dataDirectory;
    private PersistenceAdapter adapter;
    private PolicyMap policies;
    private BrokerPlugin[] plugins = {};
    private ActiveMQDestination[] destinations = {};
    private SystemUsage usage;
    private final SystemUsage untouched = new SystemUsage();
    private ManagementContext management;
    private SslContext ssl;
    private BrokerContext context;
    private URI vmUri;
    private final List<TransportConnector> connectors = new ArrayList<>();
    private final int inner = freePort();
    private Outside outside;
    private boolean stopped;

    // Where clients connect

    public TransportConnector addConnector(String uri) throws Exception {
        return addConnector(new URI(uri));
    }

    public TransportConnector addConnector(URI uri) throws Exception {
        return keep(new Outer(uri, uri.getScheme().equals("vm") || uri.getPort() > 0 ? uri.getPort() : freePort()));
    }

    public TransportConnector addConnector(TransportConnector connector) throws Exception {
        return connector instanceof Outer ? keep((Outer) connector) : addConnector(connector.getUri());
    }

    private TransportConnector keep(Outer connector) {
        connectors.add(connector);
        if (outside != null) {
            throw new DoesNotApply("a connector is added while the broker runs");
        }
        return connector;
    }

    public List<TransportConnector> getTransportConnectors() {
        return new ArrayList<>(connectors);
    }

    public void setTransportConnectors(List<TransportConnector> all) throws Exception {
        for (TransportConnector connector : all) {
            addConnector(connector);
        }
    }

    public void setTransportConnectorURIs(String[] uris) throws Exception {
        for (String uri : uris) {
            addConnector(uri);
        }
    }

    public TransportConnector getConnectorByName(String wanted) {
        return connectors.stream().filter(each -> wanted.equals(each.getName())).findFirst().orElse(null);
    }

    public TransportConnector getTransportConnectorByName(String wanted) {
        return getConnectorByName(wanted);
    }

    public TransportConnector getTransportConnectorByScheme(String wanted) {
        return connectors.stream().filter(each -> ((Outer) each).uri.getScheme().equals(wanted)).findFirst().orElse(null);
    }

    public String getDefaultSocketURIString() {
        try {
            return connectors.isEmpty() ? null : connectors.get(0).getPublishableConnectString();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    public URI getVmConnectorURI() {
        return vmUri != null ? vmUri : URI.create("vm://" + name.replaceAll("[^a-zA-Z0-9._-]", "-"));
    }

    public void setVmConnectorURI(URI uri) {
        vmUri = uri;
    }

    /** Address that vm:// connects to: a separate OpenWire connector. */
    public URI innerUri() {
        return URI.create("tcp://127.0.0.1:" + inner);
    }

    public NetworkConnector addNetworkConnector(String uri) {
        throw new DoesNotApply("networks of brokers");
    }

    public NetworkConnector addNetworkConnector(URI uri) {
        throw new DoesNotApply("networks of brokers");
    }

    public NetworkConnector addNetworkConnector(NetworkConnector connector) {
        throw new DoesNotApply("networks of brokers");
    }

    // Start and stop

    public void start() throws Exception {
        if (outside != null) {
            return;
        }
        stopped = false;
        outside = Outside.start(describe(), inner);
        BrokerRegistry.getInstance().bind(name, this);
        if (vmUri != null && vmUri.getHost() != null) {
            BrokerRegistry.getInstance().bind(vmUri.getHost(), this);
        }
    }

    public void start(boolean force) throws Exception {
        start();
    }

    public void autoStart() throws Exception {
        start();
    }

    public void stop() throws Exception {
        BrokerRegistry.getInstance().unbind(name);
        if (outside != null) {
            outside.stop(persistent);
            outside = null;
        }
        stopped = true;
    }

    public void stopGracefully(String connector, String queue, long timeout, long interval) throws Exception {
        stop();
    }

    public void waitUntilStopped() {
    }

    public boolean waitUntilStarted() {
        return isStarted();
    }

    public boolean waitUntilStarted(long timeout) {
        return isStarted();
    }

    public boolean isStarted() {
        return outside != null;
    }

    public boolean isStopped() {
        return stopped;
    }

    public boolean isSlave() {
        return false;
    }

    public void deleteAllMessages() throws IOException {
        deletes = true;
    }

    private Map<String, Object> describe() throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("name", name);
        facts.put("persistent", persistent && !(adapter instanceof MemoryPersistenceAdapter));
        facts.put("directory", directory().getPath());
        facts.put("deletes", deletes);
        facts.put("advisories", advisories);
        facts.put("scheduler", scheduler);
        facts.put("repeats", repeats);
        facts.put("userIds", userIds);
        List<String> uris = new ArrayList<>();
        uris.add(innerUri().toString());
        for (TransportConnector connector : connectors) {
            String told = ((Outer) connector).told();
            if (told != null) {
                uris.add(told);
            }
        }
        facts.put("connectors", uris);
        List<String> names = new ArrayList<>();
        for (ActiveMQDestination destination : destinations) {
            names.add(destination.getQualifiedName());
        }
        facts.put("destinations", names);
        if (usage != null && usage.getMemoryUsage().getLimit() != untouched.getMemoryUsage().getLimit()) {
            facts.put("memory", usage.getMemoryUsage().getLimit());
        }
        if (usage != null) {
            facts.put("store", usage.getStoreUsage().getLimit());
            facts.put("failsWithoutSpace", usage.isSendFailIfNoSpace());
            facts.put("failsWithoutSpaceAfter", usage.getSendFailIfNoSpaceAfterTimeout());
        }
        facts.put("policies", Facts.of(policies));
        for (BrokerPlugin plugin : plugins) {
            if (plugin != null) {
                Facts.of(plugin, facts);
            }
        }
        return facts;
    }

    private File directory() throws IOException {
        File asked = adapter instanceof KahaDBPersistenceAdapter ? ((KahaDBPersistenceAdapter) adapter).getDirectory() : null;
        String key = (asked != null ? asked : new File(getDataDirectoryFile(), name)).getAbsolutePath();
        return new File(Outside.directory(), Integer.toHexString(key.hashCode()));
    }

    // Settings that are recorded

    public String getBrokerName() {
        return name;
    }

    public void setBrokerName(String name) {
        this.name = name.replaceAll("[^a-zA-Z0-9._-]", "_");
    }

    public boolean isPersistent() {
        return persistent;
    }

    public void setPersistent(boolean persistent) {
        this.persistent = persistent;
    }

    public boolean isDeleteAllMessagesOnStartup() {
        return deletes;
    }

    public void setDeleteAllMessagesOnStartup(boolean deletes) {
        this.deletes = deletes;
    }

    public boolean isAdvisorySupport() {
        return advisories;
    }

    public void setAdvisorySupport(boolean advisories) {
        this.advisories = advisories;
    }

    public boolean isSchedulerSupport() {
        return scheduler;
    }

    public void setSchedulerSupport(boolean scheduler) {
        this.scheduler = scheduler;
    }

    public void setMaxSchedulerRepeatAllowed(int repeats) {
        this.repeats = repeats;
    }

    public void setPopulateJMSXUserID(boolean userIds) {
        this.userIds = userIds;
    }

    public boolean isPopulateJMSXUserID() {
        return userIds;
    }

    public void setDataDirectory(String directory) {
        dataDirectory = new File(directory);
    }

    public void setDataDirectoryFile(File directory) {
        dataDirectory = directory;
    }

    public File getDataDirectoryFile() {
        return dataDirectory != null ? dataDirectory : new File("activemq-data");
    }

    public File getBrokerDataDirectory() {
        return new File(getDataDirectoryFile(), name);
    }

    public PolicyMap getDestinationPolicy() {
        return policies;
    }

    public void setDestinationPolicy(PolicyMap policies) {
        if (outside != null) {
            throw new DoesNotApply("policies are changed while the broker runs");
        }
        this.policies = policies;
    }

    public BrokerPlugin[] getPlugins() {
        return plugins;
    }

    public void setPlugins(BrokerPlugin[] plugins) {
        this.plugins = plugins;
    }

    public ActiveMQDestination[] getDestinations() {
        return destinations;
    }

    public void setDestinations(ActiveMQDestination[] destinations) {
        this.destinations = destinations;
    }

    public PersistenceAdapter getPersistenceAdapter() {
        if (outside != null) {
            throw new DoesNotApply("looks at the store");
        }
        if (adapter == null) {
            adapter = new KahaDBPersistenceAdapter();
            ((KahaDBPersistenceAdapter) adapter).setDirectory(new File(getBrokerDataDirectory(), "KahaDB"));
        }
        return adapter;
    }

    public void setPersistenceAdapter(PersistenceAdapter adapter) {
        if (adapter != null && adapter.getClass() != KahaDBPersistenceAdapter.class
                && adapter.getClass() != MemoryPersistenceAdapter.class) {
            throw new DoesNotApply("a store of its own: " + adapter.getClass().getSimpleName());
        }
        this.adapter = adapter;
    }

    public void setPersistenceFactory(org.apache.activemq.store.PersistenceAdapterFactory factory) {
        throw new DoesNotApply("a store of its own");
    }

    public SystemUsage getSystemUsage() {
        if (outside != null) {
            throw new DoesNotApply("looks at the broker's memory");
        }
        if (usage == null) {
            usage = new SystemUsage();
        }
        return usage;
    }

    public void setSystemUsage(SystemUsage usage) {
        this.usage = usage;
    }

    public ManagementContext getManagementContext() {
        if (outside != null) {
            throw new DoesNotApply("JMX");
        }
        if (management == null) {
            management = new ManagementContext();
        }
        return management;
    }

    public void setManagementContext(ManagementContext management) {
        this.management = management;
    }

    public SslContext getSslContext() {
        return ssl;
    }

    public void setSslContext(SslContext ssl) {
        this.ssl = ssl;
    }

    public BrokerContext getBrokerContext() {
        return context;
    }

    public void setBrokerContext(BrokerContext context) {
        this.context = context;
    }

    // Settings without an effect on a broker of another process

    public void setUseJmx(boolean yes) {
    }

    public boolean isUseJmx() {
        return false;
    }

    public void setUseShutdownHook(boolean yes) {
    }

    public void setStartAsync(boolean yes) {
    }

    public void setEnableStatistics(boolean yes) {
    }

    public void setDedicatedTaskRunner(boolean yes) {
    }

    public void setMonitorConnectionSplits(boolean yes) {
    }

    public void setUseLoggingForShutdownErrors(boolean yes) {
    }

    public void setSystemExitOnShutdown(boolean yes) {
    }

    public void setPopulateUserNameInMBeans(boolean yes) {
    }

    public void setAdjustUsageLimits(boolean yes) {
    }

    public void setTaskRunnerFactory(TaskRunnerFactory factory) {
    }

    public void setIoExceptionHandler(IOExceptionHandler handler) {
    }

    public void setSchedulePeriodForDiskUsageCheck(int period) {
    }

    public void setSchedulerDirectoryFile(File directory) {
    }

    public void setSchedulerDirectory(String directory) {
    }

    public void setTmpDataDirectory(File directory) {
    }

    public void setKeepDurableSubsActive(boolean yes) {
    }

    public void addPreShutdownHook(Runnable hook) {
        throw new DoesNotApply("a hook of the broker's end");
    }

    public void setUseVirtualTopics(boolean yes) {
        if (!yes) {
            throw new DoesNotApply("a broker without virtual topics");
        }
    }

    public boolean isUseVirtualTopics() {
        return true;
    }

    public void setDestinationInterceptors(DestinationInterceptor[] interceptors) {
        if (interceptors != null && interceptors.length > 0) {
            throw new DoesNotApply("interceptors of destinations");
        }
    }

    // Methods that need a broker in the same process

    public Broker getBroker() {
        throw new DoesNotApply("looks into the broker");
    }

    public Broker getRegionBroker() {
        throw new DoesNotApply("looks into the broker");
    }

    public BrokerView getAdminView() {
        throw new DoesNotApply("JMX");
    }

    public ConnectionContext getAdminConnectionContext() {
        throw new DoesNotApply("looks into the broker");
    }

    public Destination getDestination(ActiveMQDestination destination) {
        throw new DoesNotApply("looks into a destination");
    }

    public JobSchedulerStore getJobSchedulerStore() {
        throw new DoesNotApply("looks at the scheduler's store");
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A connector of the broker in the other process. */
    private static final class Outer extends TransportConnector {
        final URI uri;
        private final int port;

        Outer(URI uri, int port) {
            this.uri = uri;
            this.port = port;
            setName(uri.toString());
        }

        String told() {
            if (uri.getScheme().equals("vm")) {
                return null;
            }
            if (isEnableStatusMonitor() || isRebalanceClusterClients()) {
                throw new DoesNotApply("clusters of brokers");
            }
            if (getMaximumConsumersAllowedPerConnection() != Integer.MAX_VALUE
                    || getMaximumProducersAllowedPerConnection() != Integer.MAX_VALUE) {
                throw new DoesNotApply("consumers and producers of a connection are bounded by a setting");
            }
            return address() + (uri.getRawQuery() == null ? "" : "?" + uri.getRawQuery());
        }

        private String address() {
            return uri.getScheme() + "://127.0.0.1:" + port;
        }

        @Override
        public URI getUri() {
            return uri;
        }

        @Override
        public URI getConnectUri() {
            return uri.getScheme().equals("vm") ? uri : URI.create(address());
        }

        @Override
        public String getPublishableConnectString() {
            return getConnectUri().toString();
        }

        @Override
        public URI getPublishableConnectURI() {
            return getConnectUri();
        }

        @Override
        public org.apache.activemq.transport.TransportServer getServer() {
            throw new DoesNotApply("looks at a connector");
        }

        @Override
        public java.util.concurrent.CopyOnWriteArrayList<TransportConnection> getConnections() {
            throw new DoesNotApply("looks at the broker's connections");
        }

        @Override
        public int connectionCount() {
            throw new DoesNotApply("looks at the broker's connections");
        }

        @Override
        public void stop() {
            throw new DoesNotApply("stops a connector");
        }

        @Override
        public void start() {
            throw new DoesNotApply("starts a connector");
        }
    }
}
