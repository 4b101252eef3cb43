import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

import javax.jms.Connection;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TextMessage;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQSession;
import org.apache.activemq.transport.DefaultTransportListener;

/**
 * Producers and consumers that keep books while brokers die: arguments are the URL, the queue, the acknowledge mode and
 * the numbers of producers and consumers. A line on standard input asks for how far it is; "stop" ends the producers, and
 * when the consumers have heard nothing for a while, all books are printed: lists of events, each as it happened.
 *
 *   sent        bodies whose send (or the commit of it) returned          doubtful     batches whose commit threw
 *   received    [body, message id, "1" if acknowledged before]            taken        ids whose acknowledgement returned
 *   undecided   ids whose acknowledgement or commit threw, or met an outage  problems     what else was thrown
 */
public final class Load {
    private static final int BATCH = 10;
    private static final long QUIET_MS = 3_000;

    private final ConcurrentLinkedQueue<String> sent = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<List<String>> doubtful = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<List<String>> received = new ConcurrentLinkedQueue<>();
    private final java.util.Set<String> taken = java.util.concurrent.ConcurrentHashMap.newKeySet();
    private final java.util.Set<String> undecided = java.util.concurrent.ConcurrentHashMap.newKeySet();
    private final ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
    private final AtomicInteger interruptions = new AtomicInteger();
    private final AtomicInteger outages = new AtomicInteger(); // those that go on
    private volatile boolean isOver;
    private final String url;
    private final String queue;
    private final String mode;

    private Load(String[] arguments) {
        url = arguments[0];
        queue = arguments[1];
        mode = arguments[2];
    }

    public static void main(String[] arguments) throws Exception {
        Load load = new Load(arguments);
        List<Thread> producers = new ArrayList<>();
        List<Thread> consumers = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[3]); number++) {
            String name = "p" + number + "-";
            producers.add(load.begin(() -> load.produce(name)));
        }
        for (int number = 0; number < Integer.parseInt(arguments[4]); number++) {
            consumers.add(load.begin(load::consume));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            System.out.println("{\"sent\":" + load.sent.size() + ",\"taken\":" + load.taken.size() + "}");
            System.out.flush();
        }
        load.isOver = true;
        for (Thread thread : producers) {
            thread.join();
        }
        for (Thread thread : consumers) {
            thread.join();
        }
        System.out.println(new ObjectMapper().writeValueAsString(java.util.Map.of(
            "sent", load.sent, "doubtful", load.doubtful, "received", load.received,
            "taken", load.taken, "undecided", load.undecided, "problems", load.problems)));
        System.out.flush();
        System.exit(0);
    }

    private interface Work {
        void run() throws Exception;
    }

    private Thread begin(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception problem) {
                problems.add(problem.toString());
            }
        });
        thread.start();
        return thread;
    }

    private void produce(String name) throws Exception {
        Connection connection = new ActiveMQConnectionFactory(url).createConnection();
        connection.start();
        boolean isTransacted = mode.equals("TRANSACTED");
        Session session = connection.createSession(isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        List<String> batch = new ArrayList<>();
        for (int number = 1; !isOver; number++) {
            String body = name + number;
            batch.add(body);
            if (!isTransacted) {
                producer.send(session.createTextMessage(body));
                sent.add(body);
                batch.clear();
                continue;
            }
            try {
                producer.send(session.createTextMessage(body));
                if (batch.size() == BATCH) {
                    session.commit();
                    sent.addAll(batch);
                    batch.clear();
                }
            } catch (JMSException problem) {
                doubtful.add(new ArrayList<>(batch));
                batch.clear();
                session.rollback();
            }
        }
        if (!batch.isEmpty()) {
            session.rollback();
        }
        connection.close();
    }

    private void consume() throws Exception {
        Connection connection = new ActiveMQConnectionFactory(url).createConnection();
        ((ActiveMQConnection) connection).addTransportListener(new DefaultTransportListener() {
            @Override
            public void transportInterupted() {
                interruptions.incrementAndGet();
                outages.incrementAndGet();
            }

            @Override
            public void transportResumed() {
                outages.decrementAndGet();
            }
        });
        connection.start();
        boolean isTransacted = mode.equals("TRANSACTED");
        Session session = connection.createSession(isTransacted, acknowledge());
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue + "?consumer.prefetchSize=50"));
        List<String> batch = new ArrayList<>();
        int before = epoch();
        while (true) {
            if (batch.isEmpty()) {
                before = epoch();
            }
            Message message = consumer.receive(QUIET_MS);
            if (message == null) {
                if (!batch.isEmpty() && isTransacted) {
                    decide(session::commit, batch, before);
                }
                if (isOver) {
                    break;
                }
                continue;
            }
            String id = message.getJMSMessageID();
            received.add(List.of(((TextMessage) message).getText(), id, taken.contains(id) ? "1" : "0"));
            batch.add(id);
            switch (mode) {
                case "TRANSACTED":
                    if (batch.size() == BATCH && !decide(session::commit, batch, before)) {
                        session.rollback();
                    }
                    break;
                case "CLIENT":
                case "INDIVIDUAL":
                    decide(message::acknowledge, batch, before);
                    break;
                default: // the client acknowledged before it gave the message away, or will: nobody is told when
                    undecided.addAll(batch);
                    batch.clear();
            }
        }
        connection.close();
    }

    private int acknowledge() {
        switch (mode) {
            case "CLIENT": return Session.CLIENT_ACKNOWLEDGE;
            case "DUPS_OK": return Session.DUPS_OK_ACKNOWLEDGE;
            case "INDIVIDUAL": return ActiveMQSession.INDIVIDUAL_ACKNOWLEDGE;
            case "TRANSACTED": return Session.SESSION_TRANSACTED;
            default: return Session.AUTO_ACKNOWLEDGE;
        }
    }

    private interface Decision {
        void make() throws JMSException;
    }

    /** How many outages there were; none is like another while one goes on: what the client still had may come then. */
    private int epoch() {
        return outages.get() > 0 ? -1 : interruptions.get();
    }

    /**
     * An answer of another broker than the one that had given these messages away proves nothing. "before": the epoch
     * before the first of them came.
     */
    private boolean decide(Decision decision, List<String> batch, int before) {
        try {
            decision.make();
            (interruptions.get() == before ? taken : undecided).addAll(batch);
            return true;
        } catch (JMSException problem) {
            undecided.addAll(batch);
            return false;
        } finally {
            batch.clear();
        }
    }
}
