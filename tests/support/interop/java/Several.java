import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import javax.jms.Connection;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TextMessage;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.FilteredKahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.MultiKahaDBPersistenceAdapter;

/**
 * ActiveMQ over several KahaDB directories (mKahaDB), without any port.
 *
 *   produce DIR [halt]   fills three stores, some of it in transactions over two of them; stops, or dies
 *   consume DIR          receives everything as a JMS client; prints one JSON object, queue to texts
 */
public final class Several {
    private static final String URL = "vm://several?create=false&jms.watchTopicAdvisories=false";
    private static final List<String> QUEUES = Arrays.asList("A.one", "B.one", "other");

    public static void main(String[] arguments) throws Exception {
        BrokerService broker = open(new File(arguments[1]));
        if (arguments[0].equals("produce")) {
            produce();
            if (arguments.length > 2) {
                Runtime.getRuntime().halt(0);
            }
        } else {
            System.out.println(new ObjectMapper().writeValueAsString(consume()));
            System.out.flush();
        }
        broker.stop();
        broker.waitUntilStopped();
        System.exit(0);
    }

    private static BrokerService open(File directory) throws Exception {
        MultiKahaDBPersistenceAdapter several = new MultiKahaDBPersistenceAdapter();
        several.setDirectory(directory);
        several.setFilteredPersistenceAdapters(new ArrayList<>(Arrays.asList(entry("A.>"), entry("B.>"), entry(null))));
        BrokerService broker = new BrokerService();
        broker.setBrokerName("several");
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.setUseShutdownHook(false);
        broker.setSchedulerSupport(false);
        broker.setPersistenceAdapter(several);
        broker.start();
        broker.waitUntilStarted();
        return broker;
    }

    private static FilteredKahaDBPersistenceAdapter entry(String queue) {
        KahaDBPersistenceAdapter adapter = new KahaDBPersistenceAdapter();
        adapter.setJournalMaxFileLength(1024 * 1024);
        FilteredKahaDBPersistenceAdapter entry = new FilteredKahaDBPersistenceAdapter();
        if (queue != null) {
            entry.setQueue(queue);
        }
        entry.setPersistenceAdapter(adapter);
        return entry;
    }

    private static void produce() throws Exception {
        Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        for (String queue : QUEUES) {
            for (int number = 0; number < 3; number++) {
                send(session, queue, queue + " " + number);
            }
        }
        Session transacted = connection.createSession(true, Session.SESSION_TRANSACTED);
        for (int number = 0; number < 2; number++) {
            MessageConsumer consumer = transacted.createConsumer(transacted.createQueue("A.one"));
            TextMessage taken = (TextMessage) consumer.receive(10000);
            send(transacted, "B.one", "moved " + taken.getText());
            send(transacted, "other", "told " + taken.getText());
            transacted.commit();
            consumer.close();
        }
        send(transacted, "A.one", "rolled back");
        send(transacted, "B.one", "rolled back");
        transacted.rollback();
        send(transacted, "A.one", "never committed");
        send(transacted, "B.one", "never committed");
    }

    private static void send(Session session, String queue, String text) throws Exception {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        producer.send(session.createTextMessage(text));
        producer.close();
    }

    private static Map<String, List<String>> consume() throws Exception {
        Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Map<String, List<String>> found = new LinkedHashMap<>();
        for (String queue : QUEUES) {
            List<String> texts = new ArrayList<>();
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            TextMessage message;
            while ((message = (TextMessage) consumer.receive(300)) != null) {
                texts.add(message.getText());
            }
            consumer.close();
            found.put(queue, texts);
        }
        connection.close();
        return found;
    }
}
