import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * qpid-jms-client (AMQP 1.0) with transactions: numbers are sent to one queue; another session receives each number and
 * forwards it in one transaction. If a commit fails, the complete transaction is repeated.
 */
public final class QpidJmsTransacted {
    private static final long PAUSE_MS = 1;
    private static final long RETRY_MS = 20;

    private static volatile boolean isOver;

    public static void main(String[] arguments) throws Exception {
        String url = "failover:(" + arguments[0] + ")?failover.maxReconnectDelay=100&jms.requestTimeout=60000";
        Connection connection = new JmsConnectionFactory(url).createConnection();
        connection.start();
        inThread(() -> {
            System.in.readAllBytes();
            isOver = true;
        });
        inThread(() -> forward(connection, arguments[1] + ".first", arguments[1]));
        inThread(() -> receive(connection, arguments[1]));
        send(connection, arguments[1] + ".first");
    }

    private static void send(Connection connection, String name) throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageProducer producer = session.createProducer(session.createQueue(name));
        for (int number = 1; !isOver; number++) {
            write("{\"sent\": %d}", number);
            for (boolean isDone = false; !isDone; ) {
                try {
                    producer.send(session.createTextMessage(Integer.toString(number)));
                    session.commit();
                    isDone = true;
                } catch (JMSException problem) {
                    undo(session, problem);
                }
            }
            write("{\"confirmed\": %d}", number);
            Thread.sleep(PAUSE_MS);
        }
        write("{\"done\": true}");
    }

    private static void forward(Connection connection, String from, String to) throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(session.createQueue(from));
        MessageProducer producer = session.createProducer(session.createQueue(to));
        while (true) {
            try {
                TextMessage message = (TextMessage) consumer.receive();
                TextMessage next = session.createTextMessage(message.getText());
                next.setStringProperty("first", message.getJMSMessageID());
                producer.send(next);
                session.commit();
            } catch (JMSException problem) {
                undo(session, problem);
            }
        }
    }

    private static void receive(Connection connection, String name) throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(session.createQueue(name));
        java.util.Map<String, String> forwarded = new java.util.HashMap<>();
        while (true) {
            try {
                TextMessage message = (TextMessage) consumer.receive();
                String first = message.getStringProperty("first");
                String before = forwarded.put(first, message.getJMSMessageID());
                if (before != null && !before.equals(message.getJMSMessageID())) {
                    write("{\"note\": \"%s was sent on twice\"}", message.getText());
                    System.exit(1);
                }
                write("{\"received\": %s, \"id\": \"%s\"}", message.getText(), message.getJMSMessageID());
                session.commit();
            } catch (JMSException problem) {
                undo(session, problem);
            }
        }
    }

    private static void undo(Session session, JMSException problem) throws InterruptedException {
        write("{\"note\": \"%s\"}", problem.toString().replaceAll("[\"\\\\\n]", " "));
        Thread.sleep(RETRY_MS);
        try {
            session.rollback();
        } catch (JMSException other) {
            write("{\"note\": \"%s\"}", other.toString().replaceAll("[\"\\\\\n]", " "));
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void inThread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception problem) {
                write("{\"note\": \"%s\"}", problem.toString().replaceAll("[\"\\\\\n]", " "));
                System.exit(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
