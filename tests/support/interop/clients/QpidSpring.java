import jakarta.jms.JMSException;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

import org.apache.qpid.jms.JmsConnectionFactory;
import org.messaginghub.pooled.jms.JmsPoolConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;

/** Spring over a pair of brokers: JmsTemplate and a listener container, with the pool of pooled-jms over qpid-jms-client. */
public final class QpidSpring {
    private static final long PAUSE_MS = 1;

    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[0] + ")?failover.maxReconnectDelay=100&jms.requestTimeout=60000";
        JmsPoolConnectionFactory pool = new JmsPoolConnectionFactory();
        pool.setConnectionFactory(new JmsConnectionFactory(url));

        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer();
        container.setConnectionFactory(pool);
        container.setDestinationName(arguments[1]);
        container.setSessionAcknowledgeMode(Session.CLIENT_ACKNOWLEDGE); // after the listener has returned
        container.setConcurrentConsumers(2);
        container.setMessageListener((jakarta.jms.MessageListener) message -> {
            try {
                write("{\"received\": %s, \"id\": \"%s\"}", ((TextMessage) message).getText(), message.getJMSMessageID());
            } catch (JMSException problem) {
                write("{\"note\": \"%s\"}", problem);
            }
        });
        container.afterPropertiesSet();
        container.start();

        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException problem) {
                write("{\"note\": \"%s\"}", problem);
            }
        });
        input.start();
        JmsTemplate template = new JmsTemplate(pool);
        for (int number = 1; input.isAlive(); number++) {
            write("{\"sent\": %d}", number);
            template.convertAndSend(arguments[1], Integer.toString(number)); // returns when it is stored
            write("{\"confirmed\": %d}", number);
            Thread.sleep(PAUSE_MS);
        }
        write("{\"done\": true}");
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
