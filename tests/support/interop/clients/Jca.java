import javax.sql.XAConnection;

import jakarta.jms.TextMessage;

import org.apache.activemq.ra.ActiveMQActivationSpec;
import org.apache.activemq.ra.ActiveMQResourceAdapter;
import org.springframework.jca.support.ResourceAdapterFactoryBean;
import org.springframework.jca.work.SimpleTaskWorkManager;
import org.springframework.jms.listener.endpoint.JmsMessageEndpointManager;
import org.springframework.transaction.jta.JtaTransactionManager;

/**
 * The resource adapter of ActiveMQ over a pair of brokers, in the JCA container of Spring: an endpoint whose deliveries
 * are branches of Narayana's transactions, with a row of H2 as in Narayana.java.
 */
public final class Jca {
    public static void main(String[] arguments) throws Exception {
        Narayana.setUp(arguments[0]);
        ActiveMQResourceAdapter adapter = new ActiveMQResourceAdapter();
        adapter.setServerUrl(Narayana.url);
        ResourceAdapterFactoryBean container = new ResourceAdapterFactoryBean();
        container.setResourceAdapter(adapter);
        container.setWorkManager(new SimpleTaskWorkManager());
        container.afterPropertiesSet();

        ActiveMQActivationSpec activation = new ActiveMQActivationSpec();
        activation.setResourceAdapter(adapter);
        activation.setDestination(arguments[1]);
        activation.setDestinationType("jakarta.jms.Queue");
        activation.setMaxSessions("2");
        JtaTransactionManager transactions = new JtaTransactionManager(Narayana.MANAGER);
        transactions.afterPropertiesSet();
        ThreadLocal<XAConnection> rows = new ThreadLocal<>();
        JmsMessageEndpointManager endpoints = new JmsMessageEndpointManager();
        endpoints.setResourceAdapter(container.getObject());
        endpoints.setActivationSpec(activation);
        endpoints.setTransactionManager(transactions);
        endpoints.setMessageListener(message -> {
            try {
                if (rows.get() == null) {
                    rows.set(Narayana.rows());
                }
                Narayana.take((TextMessage) message, rows.get());
            } catch (Exception problem) {
                Narayana.note(problem);
                throw new IllegalStateException(problem);
            }
        });
        endpoints.afterPropertiesSet();
        endpoints.start();
        Narayana.send(arguments[1]);
    }
}
