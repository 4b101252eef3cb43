import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.Destination;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import jakarta.jms.XAConnection;
import jakarta.jms.XAConnectionFactory;
import jakarta.jms.XASession;

/**
 * Persistent messages over JMS, by one of the patterns below, until standard input ends. bench/peers/loads.py states
 * what it reads and writes.
 *
 *   java JmsLoad HOST PORT PATTERN BYTES [PACKAGE]     PACKAGE: of the connection factory, org.apache.activemq; with
 *                                                      org.apache.qpid.jms it uses AMQP
 *
 * Each sender and each receiver has its own connection. A LIVE pattern sends and receives at the same time, at most
 * WAITING_MAX messages apart. A FILLED pattern receives what "go" has sent before. What a SENDING pattern sends is
 * removed at "pause". A RING pattern moves the messages that it was given at its start.
 */
public final class JmsLoad {
    private enum Kind { LIVE, FILLED, SENDING, RING }

    private static final int QUEUES = 4;
    private static final int RING_MESSAGES = 50;
    private static final long WAITING_MAX = 10_000;
    private static final long WAITING_BYTES_MAX = 64 << 20;
    private static final long STALL_NANOS = 30_000_000_000L;
    private static final int RECEIVE_MILLIS = 200;

    private interface Step {
        void run() throws Exception;
    }

    private final String host;
    private final String port;
    private final String factories;
    private final byte[] body;
    private final long waitingMax;
    private final AtomicLong confirmed = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicLong xids = new AtomicLong(System.nanoTime());
    private final Histogram stepTimes = new Histogram();
    private final Histogram receiveTimes = new Histogram();
    private final List<String> problems = new ArrayList<>();
    private final List<Step> senders = new ArrayList<>();
    private final List<Step> receivers = new ArrayList<>();
    private Kind kind = Kind.LIVE;
    private long copies = 1;
    private long swept;
    private boolean isAsync;
    private boolean acknowledgesWait;
    private volatile boolean sends;
    private volatile boolean receives;
    private volatile long lastReceived;
    /** Threads in a step that "pause" waits for. */
    private final AtomicLong busy = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        new JmsLoad(arguments).run(arguments[2]);
        System.exit(0);
    }

    private JmsLoad(String[] arguments) {
        host = arguments[0];
        port = arguments[1];
        body = new byte[Integer.parseInt(arguments[3])];
        factories = arguments.length > 4 ? arguments[4] : "org.apache.activemq";
        waitingMax = Math.max(4, Math.min(WAITING_MAX, WAITING_BYTES_MAX / body.length));
    }

    private void pattern(String name) throws Exception {
        switch (name) {
            case "sync" -> { send(8, false); listen(4, Session.AUTO_ACKNOWLEDGE); }
            case "async" -> { isAsync = true; send(4, false); listen(4, Session.AUTO_ACKNOWLEDGE); }
            case "commit" -> { send(8, false); receive(4, Session.SESSION_TRANSACTED); }
            case "client-acknowledge" -> { filled(); acknowledgesWait = true; receive(4, Session.CLIENT_ACKNOWLEDGE); }
            case "receive-commit" -> { filled(); receive(4, Session.SESSION_TRANSACTED); }
            case "receive-commit-16" -> { filled(); receive(16, Session.SESSION_TRANSACTED); }
            case "send-commit" -> { kind = Kind.SENDING; send(4, true); }
            case "large" -> { send(2, false); listen(2, Session.AUTO_ACKNOWLEDGE); }
            case "session-each" -> { filled(); receiveBySessions(4); }
            case "bridge" -> { kind = Kind.RING; ring(8, false); }
            case "send" -> { kind = Kind.SENDING; send(4, false); }
            case "storm" -> { kind = Kind.SENDING; connect(8); }
            case "individual" -> { filled(); receive(4, isArtemis() ? 101 : 4); }
            case "commit-both" -> { send(8, true); receive(8, Session.SESSION_TRANSACTED); }
            case "xa" -> { kind = Kind.RING; ring(8, true); }
            case "request" -> { kind = Kind.RING; request(20, 4); }
            case "fan-out" -> { copies = 50; subscribe(50, false); publish(); }
            case "durable" -> { copies = 10; subscribe(10, true); publish(); }
            default -> throw new IllegalArgumentException(name);
        }
    }

    private void run(String name) throws Exception {
        pattern(name);
        senders.forEach(step -> start(step, true));
        receivers.forEach(step -> start(step, false));
        receives = kind == Kind.LIVE;
        say("\"ready\"");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            String[] words = line.split(" ");
            try {
                switch (words[0]) {
                    case "go" -> go(Long.parseLong(words[1]));
                    case "pause" -> pause();
                    default -> { }
                }
            } catch (Exception problem) {
                failed(problem);
            }
            say(figures());
        }
    }

    private void go(long count) throws Exception {
        if (kind == Kind.FILLED) {
            fill(count - (confirmed.get() - received.get()), "bench.", QUEUES);
        }
        sends = true;
        receives = true;
    }

    private void pause() throws Exception {
        sends = false;
        receives = kind == Kind.LIVE;
        while (busy.get() > 0 && !hasFailed()) {
            Thread.sleep(1);
        }
        if (kind == Kind.SENDING) {
            sweep();
        }
        long moved = System.nanoTime();
        for (long last = -1; kind == Kind.LIVE && received.get() < confirmed.get() * copies && !hasFailed(); Thread.sleep(2)) {
            if (received.get() != last) {
                last = received.get();
                moved = System.nanoTime();
            } else if (System.nanoTime() - moved > STALL_NANOS) {
                throw new IllegalStateException("sent " + confirmed + " x " + copies + ", received " + received);
            }
        }
    }

    private void start(Step step, boolean isSender) {
        int stops = isSender || kind != Kind.LIVE ? 1 : 0;
        Thread thread = new Thread(() -> {
            try {
                while (!hasFailed()) {
                    busy.addAndGet(stops);
                    boolean goes = isSender ? sends && confirmed.get() * copies - received.get() < limit() : receives;
                    if (goes) {
                        step.run();
                    }
                    busy.addAndGet(-stops);
                    if (!goes) {
                        Thread.sleep(1);
                    }
                }
            } catch (Exception problem) {
                failed(problem);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private long limit() {
        return kind == Kind.LIVE ? waitingMax * copies : Long.MAX_VALUE;
    }

    private void filled() {
        kind = Kind.FILLED;
    }

    // ---- Senders

    private void send(int count, boolean commits) throws Exception {
        for (int number = 0; number < count; number++) {
            Session session = session(commits ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
            senders.add(sending(session, session.createQueue("bench." + number % QUEUES), commits));
        }
    }

    private void publish() throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        senders.add(sending(session, session.createTopic("bench.topic"), false));
    }

    private Step sending(Session session, Destination destination, boolean commits) throws Exception {
        MessageProducer producer = session.createProducer(destination);
        return () -> {
            long before = System.nanoTime();
            producer.send(message(session));
            if (commits) {
                session.commit();
            }
            sent(before);
        };
    }

    private void connect(int threads) {
        for (int number = 0; number < threads; number++) {
            int own = number;
            senders.add(() -> {
                long before = System.nanoTime();
                try (Connection connection = factory().createConnection()) {
                    connection.start();
                    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                    session.createProducer(session.createQueue("bench." + own % QUEUES)).send(message(session));
                }
                sent(before);
            });
        }
    }

    // ---- Receivers

    private void listen(int count, int mode) throws Exception {
        for (int number = 0; number < count; number++) {
            Session session = session(mode);
            session.createConsumer(session.createQueue("bench." + number % QUEUES)).setMessageListener(this::arrived);
        }
    }

    private void subscribe(int count, boolean isDurable) throws Exception {
        for (int number = 0; number < count; number++) {
            Connection connection = factory().createConnection();
            if (isDurable) {
                connection.setClientID("bench-" + number);
            }
            connection.start();
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic("bench.topic");
            MessageConsumer consumer = isDurable ? session.createDurableSubscriber(topic, "own") : session.createConsumer(topic);
            consumer.setMessageListener(this::arrived);
        }
    }

    private void receive(int count, int mode) throws Exception {
        for (int number = 0; number < count; number++) {
            Session session = session(mode);
            MessageConsumer consumer = session.createConsumer(session.createQueue("bench." + number % QUEUES));
            receivers.add(() -> {
                long before = System.nanoTime();
                Message message = consumer.receive(RECEIVE_MILLIS);
                if (message == null) {
                    return;
                }
                if (mode == Session.SESSION_TRANSACTED) {
                    session.commit();
                } else {
                    message.acknowledge();
                }
                arrived(message, before);
            });
        }
    }

    private void receiveBySessions(int threads) throws Exception {
        for (int number = 0; number < threads; number++) {
            Connection connection = factory().createConnection();
            connection.start();
            int own = number;
            receivers.add(() -> {
                long before = System.nanoTime();
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(session.createQueue("bench." + own % QUEUES));
                Message message = consumer.receive(RECEIVE_MILLIS);
                consumer.close();
                session.close();
                if (message != null) {
                    arrived(message, before);
                }
            });
        }
    }

    /** Each thread takes from its own queue and sends to the next one, in one transaction. */
    private void ring(int threads, boolean isXa) throws Exception {
        for (int number = 0; number < threads; number++) {
            XAConnection connection = isXa ? ((XAConnectionFactory) factory("ActiveMQXAConnectionFactory")).createXAConnection() : null;
            XASession xa = isXa ? connection.createXASession() : null;
            if (isXa) {
                connection.start();
            }
            Session session = isXa ? xa : session(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue("ring." + number));
            MessageProducer producer = session.createProducer(session.createQueue("ring." + (number + 1) % threads));
            receivers.add(() -> {
                long before = System.nanoTime();
                Xid xid = isXa ? new Branch(xids.incrementAndGet()) : null;
                if (isXa) {
                    xa.getXAResource().start(xid, XAResource.TMNOFLAGS);
                }
                Message message = consumer.receive(RECEIVE_MILLIS);
                if (message != null) {
                    arrived(message);
                    producer.send(message(session));
                }
                if (isXa) {
                    xa.getXAResource().end(xid, XAResource.TMSUCCESS);
                    if (xa.getXAResource().prepare(xid) == XAResource.XA_OK) {
                        xa.getXAResource().commit(xid, false);
                    }
                } else if (message != null) {
                    session.commit();
                }
                if (message != null) {
                    sent(before);
                }
            });
        }
        fill((long) RING_MESSAGES * threads, "ring.", threads);
        confirmed.set(0);
    }

    private void request(int clients, int servers) throws Exception {
        for (int number = 0; number < servers; number++) {
            Session session = session(Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(null);
            session.createConsumer(session.createQueue("requests")).setMessageListener(request -> {
                try {
                    Message reply = message(session);
                    reply.setJMSCorrelationID(request.getJMSMessageID());
                    producer.send(request.getJMSReplyTo(), reply);
                } catch (Exception problem) {
                    failed(problem);
                }
            });
        }
        for (int number = 0; number < clients; number++) {
            Session session = session(Session.AUTO_ACKNOWLEDGE);
            Destination own = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(own);
            MessageProducer producer = session.createProducer(session.createQueue("requests"));
            receivers.add(() -> {
                long before = System.nanoTime();
                Message request = message(session);
                request.setJMSReplyTo(own);
                producer.send(request);
                Message reply = consumer.receive(STALL_NANOS / 1_000_000);
                if (reply == null) {
                    throw new IllegalStateException("a request had no reply");
                }
                arrived(reply);
                sent(before);
            });
        }
    }

    // ---- Common parts

    private void fill(long count, String queue, int queues) throws Exception {
        boolean wasAsync = isAsync;
        isAsync = true;
        try (Connection connection = factory().createConnection()) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(null);
            for (long number = 0; number < count; number++) {
                producer.send(session.createQueue(queue + number % queues), message(session));
            }
            session.createProducer(session.createQueue(queue + 0)).close(); // its answer comes after all messages
        } finally {
            isAsync = wasAsync;
        }
        confirmed.addAndGet(Math.max(count, 0));
    }

    /** Remove what was sent. It does not count as received. */
    private void sweep() throws Exception {
        CountDownLatch left = new CountDownLatch((int) (confirmed.get() - swept));
        swept = confirmed.get();
        try (Connection connection = factory().createConnection()) {
            for (int number = 0; number < QUEUES; number++) {
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                session.createConsumer(session.createQueue("bench." + number)).setMessageListener(message -> left.countDown());
            }
            connection.start();
            if (!left.await(2 * STALL_NANOS, TimeUnit.NANOSECONDS)) {
                throw new IllegalStateException(left.getCount() + " messages that were sent are missing");
            }
        }
    }

    private Session session(int mode) throws Exception {
        Connection connection = factory().createConnection();
        connection.start();
        return connection.createSession(mode == Session.SESSION_TRANSACTED, mode);
    }

    private boolean isArtemis() {
        return factories.contains("artemis");
    }

    private boolean isQpid() {
        return factories.contains("qpid");
    }

    private ConnectionFactory factory() throws Exception {
        return (ConnectionFactory) factory(isQpid() ? "JmsConnectionFactory" : "ActiveMQConnectionFactory");
    }

    private Object factory(String name) throws Exception {
        String options = isArtemis()
            ? "blockOnDurableSend=" + !isAsync + "&blockOnAcknowledge=" + acknowledgesWait
            : isQpid() ? "jms.forceAsyncSend=" + isAsync
            : "jms.useAsyncSend=" + isAsync + "&jms.sendAcksAsync=" + !acknowledgesWait;
        String url = (isQpid() ? "amqp://" : "tcp://") + host + ":" + port + "?" + options;
        return Class.forName(factories + "." + name).getConstructor(String.class).newInstance(url);
    }

    private BytesMessage message(Session session) throws Exception {
        BytesMessage message = session.createBytesMessage();
        message.writeLong(System.nanoTime());
        message.writeBytes(body, 8, body.length - 8);
        return message;
    }

    private void sent(long before) {
        confirmed.incrementAndGet();
        stepTimes.add(System.nanoTime() - before);
    }

    private void arrived(Message message, long before) {
        arrived(message);
        if (kind == Kind.FILLED) {
            stepTimes.add(lastReceived - before);
        }
    }

    private void arrived(Message message) {
        try {
            long now = System.nanoTime();
            if (kind == Kind.LIVE) { // else the time says how long it lay in its queue
                receiveTimes.add(now - ((BytesMessage) message).readLong());
            }
            lastReceived = now;
            received.incrementAndGet();
        } catch (Exception problem) {
            failed(problem);
        }
    }

    private void failed(Exception problem) {
        synchronized (problems) {
            problems.add(problem.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " "));
        }
    }

    private boolean hasFailed() {
        synchronized (problems) {
            return !problems.isEmpty();
        }
    }

    /** A FILLED pattern whose queues are empty ended with its last message. */
    private String figures() {
        boolean isDry = kind == Kind.FILLED && received.get() >= confirmed.get();
        synchronized (problems) {
            return "{\"nanos\":" + (isDry ? lastReceived : System.nanoTime())
                + ",\"sent\":" + confirmed + ",\"received\":" + received
                + ",\"step_us\":" + stepTimes.taken() + ",\"receive_us\":" + receiveTimes.taken()
                + ",\"problems\":[" + (problems.isEmpty() ? "" : "\"" + problems.get(0) + "\"") + "]}";
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private record Branch(long number) implements Xid {
        public int getFormatId() {
            return 1;
        }

        public byte[] getGlobalTransactionId() {
            return Long.toHexString(number).getBytes();
        }

        public byte[] getBranchQualifier() {
            return new byte[] {1};
        }
    }

    /** Microseconds in 32 steps for each power of two, so within 3 %. */
    private static final class Histogram {
        private final AtomicLongArray counts = new AtomicLongArray(1280);

        void add(long nanos) {
            long micros = Math.max(0, nanos / 1000);
            int shift = Math.max(0, 58 - Long.numberOfLeadingZeros(micros));
            counts.incrementAndGet(Math.min(counts.length() - 1, shift * 32 + (int) (micros >> shift)));
        }

        /** The median and the 99th percentile since the last call, as JSON; null without a value. */
        String taken() {
            long[] own = new long[counts.length()];
            long all = 0;
            for (int place = 0; place < own.length; place++) {
                own[place] = counts.getAndSet(place, 0);
                all += own[place];
            }
            return all == 0 ? "null" : "[" + percentile(own, all, 0.5) + "," + percentile(own, all, 0.99) + "]";
        }

        private static long percentile(long[] own, long all, double share) {
            long seen = 0;
            int place = 0;
            while ((seen += own[place]) < all * share) {
                place++;
            }
            int shift = Math.max(0, place / 32 - 1);
            return (long) (place - shift * 32) << shift;
        }
    }
}
