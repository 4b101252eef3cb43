import java.util.HashSet;
import java.util.Set;

import javax.jms.Connection;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import javax.jms.TextMessage;

import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * Send and receive over a pair of brokers by JMS, with ActiveMQ's client. The program continues when the master dies.
 *
 *   java -cp "activemq-client.jar:..." Pair.java send    tcp://a:61616,tcp://b:61616 orders 1000
 *   java -cp "activemq-client.jar:..." Pair.java receive tcp://a:61616,tcp://b:61616 orders 1000
 *
 * Only the URL concerns failover: the client finds the master, opens everything again, and sends messages without an
 * answer again. The broker does not store them twice.
 */
public final class Pair {
    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[1] + ")?maxReconnectDelay=100";
        int count = Integer.parseInt(arguments[3]);
        Connection connection = new ActiveMQConnectionFactory(url).createConnection();
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
                if (seen.add(message.getText())) { // otherwise its acknowledgement was lost with the master
                    System.out.println(message.getText());
                }
                message.acknowledge();
            }
        }
        connection.close();
    }
}
