import jakarta.jms.Connection;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

import org.apache.qpid.jms.JmsConnectionFactory;

/** qpid-jms-client (AMQP 1.0) over a pair of brokers. Only the URL configures the failover. */
public final class QpidJms {
    private static final long PAUSE_MS = 1;

    private static volatile boolean isOver;

    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[0] + ")?failover.maxReconnectDelay=100&jms.requestTimeout=60000";
        Connection connection = new JmsConnectionFactory(url).createConnection();
        connection.start();

        Session receiving = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        receiving.createConsumer(receiving.createQueue(arguments[1])).setMessageListener(message -> {
            try {
                write("{\"received\": %s, \"id\": \"%s\"}", ((TextMessage) message).getText(), message.getJMSMessageID());
                message.acknowledge();
            } catch (Exception problem) {
                write("{\"note\": \"%s\"}", problem);
            }
        });

        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException problem) {
                write("{\"note\": \"%s\"}", problem);
            }
            isOver = true;
        });
        input.start();
        Session sending = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = sending.createProducer(sending.createQueue(arguments[1]));
        for (int number = 1; !isOver; number++) {
            write("{\"sent\": %d}", number);
            producer.send(sending.createTextMessage(Integer.toString(number))); // returns when it is stored
            write("{\"confirmed\": %d}", number);
            Thread.sleep(PAUSE_MS);
        }
        write("{\"done\": true}");
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
