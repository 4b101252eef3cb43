import java.util.Timer;

import jakarta.jms.TextMessage;
import jakarta.resource.spi.BootstrapContext;
import jakarta.resource.spi.XATerminator;
import jakarta.resource.spi.work.ExecutionContext;
import jakarta.resource.spi.work.Work;
import jakarta.resource.spi.work.WorkContext;
import jakarta.resource.spi.work.WorkListener;
import jakarta.resource.spi.work.WorkManager;
import jakarta.transaction.TransactionSynchronizationRegistry;

import org.apache.activemq.ra.ActiveMQActivationSpec;
import org.apache.activemq.ra.ActiveMQResourceAdapter;
import org.springframework.jms.listener.endpoint.JmsMessageEndpointManager;
import org.springframework.transaction.jta.JtaTransactionManager;

/**
 * The resource adapter of ActiveMQ over a pair of brokers, with the message endpoints of Spring: deliveries are branches
 * of Narayana's transactions, with a row of H2 as in Narayana.java.
 */
public final class Jca {
    public static void main(String[] arguments) throws Exception {
        Narayana.setUp(arguments[0]);
        ActiveMQResourceAdapter adapter = new ActiveMQResourceAdapter();
        adapter.setServerUrl(Narayana.url);
        adapter.start(new Container());

        ActiveMQActivationSpec activation = new ActiveMQActivationSpec();
        activation.setResourceAdapter(adapter);
        activation.setDestination(arguments[1]);
        activation.setDestinationType("jakarta.jms.Queue");
        activation.setMaxSessions("2");
        JtaTransactionManager transactions = new JtaTransactionManager(Narayana.MANAGER);
        transactions.afterPropertiesSet();
        ThreadLocal<Narayana.Rows> rows = new ThreadLocal<>();
        JmsMessageEndpointManager endpoints = new JmsMessageEndpointManager();
        endpoints.setResourceAdapter(adapter);
        endpoints.setActivationSpec(activation);
        endpoints.setTransactionManager(transactions);
        endpoints.setMessageListener(message -> {
            try {
                if (rows.get() == null) {
                    rows.set(new Narayana.Rows());
                }
                rows.get().add((TextMessage) message);
            } catch (Exception problem) {
                Narayana.note(problem);
                rows.remove();
                throw new IllegalStateException(problem);
            }
        });
        endpoints.afterPropertiesSet();
        endpoints.start();
        Narayana.send(arguments[1]);
    }

    /** What the adapter needs of a container: threads and timers. */
    private static final class Container implements BootstrapContext, WorkManager {
        @Override
        public WorkManager getWorkManager() {
            return this;
        }

        @Override
        public Timer createTimer() {
            return new Timer(true);
        }

        @Override
        public XATerminator getXATerminator() {
            return null;
        }

        @Override
        public boolean isContextSupported(Class<? extends WorkContext> kind) {
            return false;
        }

        @Override
        public TransactionSynchronizationRegistry getTransactionSynchronizationRegistry() {
            return null;
        }

        @Override
        public void doWork(Work work) {
            work.run();
        }

        @Override
        public void doWork(Work work, long timeout, ExecutionContext context, WorkListener listener) {
            work.run();
        }

        @Override
        public long startWork(Work work) {
            new Thread(work).start();
            return 0;
        }

        @Override
        public long startWork(Work work, long timeout, ExecutionContext context, WorkListener listener) {
            return startWork(work);
        }

        @Override
        public void scheduleWork(Work work) {
            startWork(work);
        }

        @Override
        public void scheduleWork(Work work, long timeout, ExecutionContext context, WorkListener listener) {
            startWork(work);
        }
    }
}
