import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import javax.jms.JMSException;
import javax.naming.Context;
import javax.naming.NameNotFoundException;

import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTopic;
import org.objectweb.jtests.jms.admin.Admin;

/** Gives JORAM's tests ActiveMQ's client and a broker of another process; the names that they look up are in memory. */
public final class OutsideAdmin implements Admin {
    private static final Map<String, Object> bound = new ConcurrentHashMap<>();
    private static BrokerService broker;

    @Override
    public String getName() {
        return "a broker outside";
    }

    @Override
    public Context createContext() {
        return (Context) Proxy.newProxyInstance(OutsideAdmin.class.getClassLoader(), new Class<?>[] {Context.class},
            (self, method, arguments) -> {
                if (!method.getName().equals("lookup")) {
                    return null;
                }
                Object found = bound.get(String.valueOf(arguments[0]));
                if (found == null) {
                    throw new NameNotFoundException(String.valueOf(arguments[0]));
                }
                return found;
            });
    }

    @Override
    public synchronized void startServer() throws Exception {
        synchronized (bound) {
            if (broker == null) {
                broker = new BrokerService();
                broker.setBrokerName("joram");
                broker.start();
            }
        }
    }

    @Override
    public void stopServer() {
    }

    @Override
    public void start() {
    }

    @Override
    public void stop() {
    }

    @Override
    public void createConnectionFactory(String name) {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(broker.innerUri());
        factory.setTrustAllPackages(true);
        factory.getRedeliveryPolicy().setInitialRedeliveryDelay(0); // the tests wait for 1 s, which is its default
        bound.put(name, factory);
    }

    @Override
    public void createQueueConnectionFactory(String name) {
        createConnectionFactory(name);
    }

    @Override
    public void createTopicConnectionFactory(String name) {
        createConnectionFactory(name);
    }

    @Override
    public void createQueue(String name) {
        bound.put(name, new ActiveMQQueue(name));
    }

    @Override
    public void createTopic(String name) {
        bound.put(name, new ActiveMQTopic(name));
    }

    @Override
    public void deleteQueue(String name) {
        delete(name);
    }

    @Override
    public void deleteTopic(String name) {
        delete(name);
    }

    private static void delete(String name) {
        Object destination = bound.remove(name);
        try {
            ActiveMQConnection connection = (ActiveMQConnection) new ActiveMQConnectionFactory(broker.innerUri()).createConnection();
            connection.destroyDestination((ActiveMQDestination) destination);
            connection.close();
        } catch (JMSException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void deleteConnectionFactory(String name) {
        bound.remove(name);
    }

    @Override
    public void deleteQueueConnectionFactory(String name) {
        bound.remove(name);
    }

    @Override
    public void deleteTopicConnectionFactory(String name) {
        bound.remove(name);
    }
}
