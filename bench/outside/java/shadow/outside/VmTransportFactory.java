package outside;

import java.net.URI;
import java.util.HashMap;
import java.util.Map;

import org.apache.activemq.broker.BrokerFactory;
import org.apache.activemq.broker.BrokerRegistry;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.transport.Transport;
import org.apache.activemq.transport.TransportFactory;
import org.apache.activemq.transport.TransportFilter;
import org.apache.activemq.transport.TransportServer;
import org.apache.activemq.util.IntrospectionSupport;
import org.apache.activemq.util.URISupport;

/** Connects vm:// to the broker with this name in another process. A missing broker is started, and ends with its last connection. */
public final class VmTransportFactory extends TransportFactory {
    private static final Map<BrokerService, Integer> made = new HashMap<>();

    @Override
    public Transport doConnect(URI location) throws Exception {
        return connect(location, false);
    }

    @Override
    public Transport doCompositeConnect(URI location) throws Exception {
        return connect(location, true);
    }

    @Override
    public TransportServer doBind(URI location) {
        throw new DoesNotApply("a server of vm:// alone");
    }

    private static Transport connect(URI location, boolean composite) throws Exception {
        BrokerService broker;
        boolean isMade;
        synchronized (made) {
            broker = broker(location);
            isMade = made.containsKey(broker);
            if (isMade) {
                made.merge(broker, 1, Integer::sum);
            }
        }
        Transport transport = composite ? TransportFactory.compositeConnect(broker.innerUri()) : TransportFactory.connect(broker.innerUri());
        return isMade ? new Counted(transport, broker) : transport;
    }

    private static BrokerService broker(URI location) throws Exception {
        String text = location.toString();
        String name = location.getHost();
        URI made;
        if (name == null) {
            String inner = text.substring(text.indexOf("broker:"));
            if (text.startsWith("vm:(")) {
                inner = inner.substring(0, inner.lastIndexOf(')'));
            }
            made = URI.create(inner);
            name = BrokerService.DEFAULT_BROKER_NAME;
            int behind = inner.lastIndexOf(")/");
            if (behind >= 0 && behind + 2 < inner.length()) {
                name = inner.substring(behind + 2).replaceAll("\\?.*", "");
            }
        } else {
            Map<String, String> options = new HashMap<>(URISupport.parseParameters(location));
            if (options.containsKey("brokerConfig")) {
                throw new DoesNotApply("a broker configured by a file");
            }
            boolean creates = !"false".equals(options.get("create"));
            Map<String, Object> said = IntrospectionSupport.extractProperties(options, "broker.");
            StringBuilder query = new StringBuilder();
            said.forEach((key, value) -> query.append(query.length() == 0 ? "?" : "&").append(key).append('=').append(value));
            made = creates ? URI.create("broker:()/" + name + query) : null;
        }
        BrokerService there = BrokerRegistry.getInstance().lookup(name);
        if (there == null) {
            if (made == null) {
                throw new java.io.IOException("Broker named '" + name + "' does not exist.");
            }
            there = BrokerFactory.createBroker(made);
            there.start();
            VmTransportFactory.made.put(there, 0);
        }
        return there;
    }

    private static final class Counted extends TransportFilter {
        private final BrokerService broker;
        private boolean gone;

        Counted(Transport next, BrokerService broker) {
            super(next);
            this.broker = broker;
        }

        @Override
        public void stop() throws Exception {
            super.stop();
            synchronized (made) {
                if (!gone) {
                    gone = true;
                    if (made.merge(broker, -1, Integer::sum) == 0) {
                        made.remove(broker);
                        broker.stop();
                    }
                }
            }
        }
    }
}
