import jakarta.jms.Connection;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.command.ActiveMQMessage;

/** activemq-client over a pair of brokers: nothing in it is about failover but the URL. */
public final class Jms {
    private static final long PAUSE_MS = 1;

    private static volatile boolean isOver;

    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[0] + ")?maxReconnectDelay=100";
        Connection connection = new ActiveMQConnectionFactory(url).createConnection();
        connection.start();

        Session receiving = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        receiving.createConsumer(receiving.createQueue(arguments[1])).setMessageListener(message -> {
            try {
                long taken = ((ActiveMQMessage) message).getBrokerInTime();
                String text = ((TextMessage) message).getText();
                write("{\"received\": %s, \"id\": \"%s %d\"}", text, message.getJMSMessageID(), taken);
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
        Queue queue = sending.createQueue(arguments[1]);
        MessageProducer producer = sending.createProducer(queue);
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
