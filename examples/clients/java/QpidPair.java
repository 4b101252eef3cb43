import java.util.HashSet;
import java.util.Set;

import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Send and receive over a pair of brokers by JMS and AMQP 1.0, with Qpid JMS. The program continues when the master
 * dies.
 *
 *   java -cp "lib/*" QpidPair.java send    amqp://a:5672,amqp://b:5672 orders 1000
 *   java -cp "lib/*" QpidPair.java receive amqp://a:5672,amqp://b:5672 orders 1000
 *
 * Only the URL concerns failover: the client finds the master, opens everything again, and sends messages without an
 * answer again. The broker may store such a message twice, so the receiver ignores messages that it has seen.
 */
public final class QpidPair {
    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[1] + ")?failover.maxReconnectDelay=100";
        int count = Integer.parseInt(arguments[3]);
        Connection connection = new JmsConnectionFactory(url).createConnection();
        connection.start();
        // CLIENT: unacknowledged messages are delivered again, to this program or another one.
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(arguments[2]);
        if (arguments[0].equals("send")) {
            MessageProducer producer = session.createProducer(queue);
            for (int number = 1; number <= count; number++) {
                producer.send(session.createTextMessage("order " + number)); // returns when it is stored
            }
        } else {
            MessageConsumer consumer = session.createConsumer(queue);
            Set<String> seen = new HashSet<>();
            while (seen.size() < count) {
                TextMessage message = (TextMessage) consumer.receive();
                if (seen.add(message.getText())) {
                    System.out.println(message.getText());
                }
                message.acknowledge();
            }
        }
        connection.close();
    }
}
