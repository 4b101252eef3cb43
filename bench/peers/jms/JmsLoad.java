import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageProducer;
import javax.jms.Session;

import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * JMS producers and AUTO consumers, each with a connection of its own: persistent messages for so many seconds.
 *
 *   java JmsLoad URL sync|async|transacted PRODUCERS CONSUMERS QUEUES BYTES BATCH WARMUP SECONDS
 *
 * It prints "measuring" when the warm-up is over, "measured" when the time is, and then one line of JSON. What counts is
 * sent after the warm-up, from one answer of the broker to a later one: before the first and after the last message
 * each producer waits for an answer, so that what lies in buffers does not count.
 */
public final class JmsLoad {
    private static final long DRAIN_NANOS_MAX = 60_000_000_000L;
    private static final int SAMPLES_MAX = 2_000_000;

    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicLong receivedMeasured = new AtomicLong();
    private final List<String> problems = new ArrayList<>();
    private volatile boolean isMeasuring;
    private volatile boolean isOver;
    private double rate;
    private long measured;
    private long[] samples = new long[0];

    public static void main(String[] arguments) throws Exception {
        new JmsLoad().run(arguments);
        System.exit(0);
    }

    private void run(String[] arguments) throws Exception {
        String url = arguments[0];
        String mode = arguments[1];
        int producers = Integer.parseInt(arguments[2]);
        int consumers = Integer.parseInt(arguments[3]);
        int queues = Integer.parseInt(arguments[4]);
        byte[] body = new byte[Integer.parseInt(arguments[5])];
        int batch = Integer.parseInt(arguments[6]);
        long warmup = (long) (Double.parseDouble(arguments[7]) * 1000);
        long time = (long) (Double.parseDouble(arguments[8]) * 1000);
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(url);
        factory.setUseAsyncSend(mode.equals("async"));
        List<Connection> receiving = new ArrayList<>();
        for (int number = 0; number < consumers; number++) {
            Connection connection = factory.createConnection();
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.createConsumer(session.createQueue("jms.bench." + number % queues)).setMessageListener(message -> {
                received.incrementAndGet();
                if (isMeasuring) {
                    receivedMeasured.incrementAndGet();
                }
            });
            connection.start();
            receiving.add(connection);
        }
        CountDownLatch done = new CountDownLatch(producers);
        for (int number = 0; number < producers; number++) {
            String queue = "jms.bench." + number % queues;
            Thread thread = new Thread(() -> {
                try {
                    produce(factory, queue, body, mode.equals("transacted") ? batch : 0);
                } catch (Exception problem) {
                    synchronized (problems) {
                        problems.add(problem.toString());
                    }
                }
                done.countDown();
            });
            thread.start();
        }
        Thread.sleep(warmup);
        isMeasuring = true;
        say("measuring");
        long began = System.nanoTime();
        Thread.sleep(time);
        isMeasuring = false;
        double seconds = (System.nanoTime() - began) / 1e9;
        say("measured");
        isOver = true;
        done.await();
        long until = System.nanoTime() + DRAIN_NANOS_MAX;
        while (consumers > 0 && received.get() < sent.get() && System.nanoTime() < until) {
            Thread.sleep(10);
        }
        if (consumers > 0 && received.get() != sent.get()) {
            problems.add("sent " + sent.get() + ", received " + received.get());
        }
        Arrays.sort(samples);
        StringBuilder line = new StringBuilder("{");
        line.append("\"sent_per_second\":").append(rate);
        line.append(",\"received_per_second\":").append(receivedMeasured.get() / seconds);
        line.append(",\"sent\":").append(sent.get()).append(",\"received\":").append(received.get());
        line.append(",\"measured\":").append(measured);
        line.append(",\"send_p50_ms\":").append(percentile(0.5)).append(",\"send_p99_ms\":").append(percentile(0.99));
        line.append(",\"problems\":[");
        for (int place = 0; place < problems.size(); place++) {
            line.append(place == 0 ? "\"" : ",\"").append(problems.get(place).replaceAll("[\"\\\\]", "'")).append('"');
        }
        say(line.append("]}").toString());
        for (Connection connection : receiving) {
            connection.close();
        }
    }

    /** A sample is one send, or with a batch one commit with the sends before it. */
    private void produce(ActiveMQConnectionFactory factory, String queue, byte[] body, int batch) throws Exception {
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(batch > 0, batch > 0 ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        long[] own = new long[1024];
        int count = 0;
        long messages = 0;
        long began = 0;
        while (!isOver) {
            if (began == 0 && isMeasuring) {
                answered(session, queue);
                began = System.nanoTime();
            }
            long before = System.nanoTime();
            for (int number = 0; number < Math.max(batch, 1); number++) {
                BytesMessage message = session.createBytesMessage();
                message.writeBytes(body);
                producer.send(message);
            }
            if (batch > 0) {
                session.commit();
            }
            sent.addAndGet(Math.max(batch, 1));
            if (began != 0) {
                messages += Math.max(batch, 1);
                if (count < SAMPLES_MAX) {
                    own = count == own.length ? Arrays.copyOf(own, count * 2) : own;
                    own[count++] = System.nanoTime() - before;
                }
            }
        }
        answered(session, queue);
        double seconds = (System.nanoTime() - began) / 1e9;
        connection.close();
        synchronized (this) {
            rate += began == 0 ? 0 : messages / seconds;
            measured += messages;
            int length = samples.length;
            samples = Arrays.copyOf(samples, length + count);
            System.arraycopy(own, 0, samples, length, count);
        }
    }

    /** The broker has read all that this connection sent: commands of a connection are done in their order. */
    private static void answered(Session session, String queue) throws Exception {
        session.createProducer(session.createQueue(queue)).close();
    }

    private double percentile(double part) {
        return samples.length == 0 ? 0 : samples[(int) Math.min(samples.length - 1, samples.length * part)] / 1e6;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
