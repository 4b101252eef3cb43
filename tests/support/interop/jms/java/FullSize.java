import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import javax.jms.TemporaryQueue;
import javax.jms.TextMessage;
import javax.jms.Topic;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ScheduledMessage;

/**
 * One subject at a given size, beside a client that sends persistent messages to itself: arguments are the URL, the
 * destination's name, the subject and the size. Prints how long each part of it took, and the round trips of the
 * client beside, in milliseconds. Ends with 1 and a stack trace if anything is missing, doubled or out of order.
 */
public final class FullSize {
    private static final int BATCH = 1_000;
    private static final long COMES_MS = 60_000;
    private static final int BODIES_EACH = 10;
    private static final int SCANS = 5;
    private static final int QUEUES_EACH = 500;

    private final Map<String, Object> figures = new LinkedHashMap<>();
    private final ActiveMQConnectionFactory factory;
    private final String name;
    private final int size;
    private final Connection connection;
    private final Session session;
    private long began = System.nanoTime();

    private FullSize(String url, String name, int size) throws JMSException {
        factory = new ActiveMQConnectionFactory(url);
        this.name = name;
        this.size = size;
        connection = factory.createConnection();
        connection.setClientID(name);
        connection.start();
        session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        FullSize subject = new FullSize(arguments[0], arguments[1], Integer.parseInt(arguments[3]));
        Beside beside = subject.new Beside();
        beside.setDaemon(true);
        beside.start();
        subject.began = System.nanoTime();
        switch (arguments[2]) {
            case "temporary_queues": subject.temporaryQueues(); break;
            case "durable_subscriptions": subject.durableSubscriptions(); break;
            case "browse": subject.browse(); break;
            case "scheduled": subject.scheduled(); break;
            case "selectors": subject.selectors(); break;
            case "large_message": subject.largeMessage(); break;
            default: throw new IllegalArgumentException(arguments[2]);
        }
        beside.end();
        subject.connection.close();
        System.out.println(new ObjectMapper().writeValueAsString(subject.figures));
    }

    /** A reply to each of them, by another connection. */
    private void temporaryQueues() throws Exception {
        List<Connection> connections = new ArrayList<>();
        List<TemporaryQueue> queues = new ArrayList<>();
        List<MessageConsumer> consumers = new ArrayList<>();
        while (queues.size() < size) {
            Connection requesting = factory.createConnection();
            requesting.start();
            connections.add(requesting);
            Session asking = requesting.createSession(false, Session.AUTO_ACKNOWLEDGE);
            for (int number = 0; number < QUEUES_EACH && queues.size() < size; number++) {
                TemporaryQueue queue = asking.createTemporaryQueue();
                queues.add(queue);
                consumers.add(asking.createConsumer(queue));
            }
        }
        took("made");
        MessageProducer producer = session.createProducer(null);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int number = 0; number < size; number++) {
            producer.send(queues.get(number), session.createTextMessage(String.valueOf(number)));
        }
        for (int number = 0; number < size; number++) {
            is(number, consumers.get(number).receive(COMES_MS));
        }
        took("replied");
        for (int number = 0; number < size; number++) {
            consumers.get(number).close();
            queues.get(number).delete();
        }
        for (Connection requesting : connections) {
            requesting.close();
        }
        took("deleted");
    }

    /** What was sent while all of them were away. */
    private void durableSubscriptions() throws Exception {
        Topic topic = session.createTopic(name);
        for (int number = 0; number < size; number++) {
            session.createDurableSubscriber(topic, "d" + number).close();
        }
        took("made");
        MessageProducer producer = session.createProducer(topic);
        for (int number = 0; number < BODIES_EACH; number++) {
            producer.send(session.createTextMessage(String.valueOf(number)));
        }
        took("sent");
        for (int number = 0; number < size; number++) {
            MessageConsumer consumer = session.createDurableSubscriber(topic, "d" + number);
            for (int body = 0; body < BODIES_EACH; body++) {
                is(body, consumer.receive(COMES_MS));
            }
            consumer.close();
        }
        took("drained");
        for (int number = 0; number < size; number++) {
            session.unsubscribe("d" + number);
        }
        took("unsubscribed");
    }

    private void browse() throws Exception {
        Queue queue = session.createQueue(name);
        send(queue, 0);
        took("sent");
        java.util.Enumeration<?> browsed = session.createBrowser(queue).getEnumeration();
        int seen = 0;
        while (browsed.hasMoreElements()) {
            is(seen++, (Message) browsed.nextElement());
        }
        if (seen != size) {
            throw new IllegalStateException("browsed " + seen);
        }
        took("browsed");
    }

    /** All due at once, a while after the last one was sent. */
    private void scheduled() throws Exception {
        Queue queue = session.createQueue(name);
        long due = System.currentTimeMillis() + Math.max(2_000, 2L * size);
        send(queue, due);
        took("sent");
        Thread.sleep(Math.max(0, due - System.currentTimeMillis()));
        began = System.nanoTime();
        MessageConsumer consumer = session.createConsumer(queue);
        boolean[] came = new boolean[size];
        for (int number = 0; number < size; number++) {
            int body = Integer.parseInt(((TextMessage) came(consumer.receive(COMES_MS))).getText());
            if (came[body]) {
                throw new IllegalStateException(body + " came twice");
            }
            came[body] = true;
        }
        took("received");
    }

    /** Each consumer looks for one message near the end. */
    private void selectors() throws Exception {
        Queue queue = session.createQueue(name);
        send(queue, 0);
        took("sent");
        for (int scan = 1; scan <= SCANS; scan++) {
            MessageConsumer consumer = session.createConsumer(queue, "number = " + (size - scan));
            is(size - scan, consumer.receive(COMES_MS));
            consumer.close();
        }
        took("scanned");
        figures.put("scanned", (long) figures.get("scanned") / SCANS);
    }

    /** Of so many MiB. */
    private void largeMessage() throws Exception {
        Queue queue = session.createQueue(name);
        byte[] body = new byte[size << 20];
        for (int at = 0; at < body.length; at += 4096) {
            body[at] = (byte) (at >> 12);
        }
        BytesMessage large = session.createBytesMessage();
        large.writeBytes(body);
        began = System.nanoTime();
        session.createProducer(queue).send(large);
        took("sent");
        BytesMessage came = (BytesMessage) came(session.createConsumer(queue).receive(COMES_MS));
        took("received");
        byte[] found = new byte[body.length];
        if (came.getBodyLength() != body.length || came.readBytes(found) != body.length || !Arrays.equals(found, body)) {
            throw new IllegalStateException("another body");
        }
    }

    private void send(Destination to, long due) throws JMSException {
        Session sending = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageProducer producer = sending.createProducer(to);
        for (int number = 0; number < size; number++) {
            Message message = sending.createTextMessage(String.valueOf(number));
            message.setIntProperty("number", number);
            message.setStringProperty("colour", number % 2 == 0 ? "red" : "blue");
            if (due > 0) {
                long delay = Math.max(1, due - System.currentTimeMillis());
                message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, delay);
            }
            producer.send(message);
            if ((number + 1) % BATCH == 0) {
                sending.commit();
            }
        }
        sending.commit();
        sending.close();
    }

    private static Message came(Message message) {
        if (message == null) {
            throw new IllegalStateException("nothing came");
        }
        return message;
    }

    private static void is(int body, Message message) throws JMSException {
        String found = ((TextMessage) came(message)).getText();
        if (!found.equals(String.valueOf(body))) {
            throw new IllegalStateException(found + " came in place of " + body);
        }
    }

    private void took(String part) {
        long now = System.nanoTime();
        figures.put(part, (now - began) / 1_000_000);
        began = now;
    }

    private final class Beside extends Thread {
        private final List<Long> trips = new ArrayList<>();
        private volatile boolean isOver;
        private volatile Exception problem;

        @Override
        public void run() {
            try {
                Connection own = factory.createConnection();
                own.start();
                Session trying = own.createSession(false, Session.AUTO_ACKNOWLEDGE);
                Queue queue = trying.createQueue(name + ".BESIDE");
                MessageProducer producer = trying.createProducer(queue);
                MessageConsumer consumer = trying.createConsumer(queue);
                for (int number = 0; !isOver; number++) {
                    long from = System.nanoTime();
                    producer.send(trying.createTextMessage(String.valueOf(number)));
                    is(number, consumer.receive(COMES_MS));
                    trips.add((System.nanoTime() - from) / 1_000_000);
                    Thread.sleep(10);
                }
                own.close();
            } catch (Exception thrown) {
                problem = thrown;
            }
        }

        void end() throws Exception {
            isOver = true;
            join();
            if (problem != null) {
                throw problem;
            }
            trips.sort(null);
            figures.put("beside", List.of(
                trips.size(), trips.get(trips.size() / 2), trips.get(trips.size() * 99 / 100), trips.get(trips.size() - 1)));
        }
    }
}
