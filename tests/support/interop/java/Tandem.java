import java.io.File;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TextMessage;
import javax.jms.Topic;
import javax.jms.XASession;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQXAConnectionFactory;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.TransportConnector;
import org.apache.activemq.command.ActiveMQBytesMessage;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQMessage;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTextMessage;
import org.apache.activemq.command.ActiveMQTopic;
import org.apache.activemq.command.Message;
import org.apache.activemq.command.MessageId;
import org.apache.activemq.command.SubscriptionInfo;
import org.apache.activemq.command.TransactionId;
import org.apache.activemq.command.XATransactionId;
import org.apache.activemq.filter.BooleanExpression;
import org.apache.activemq.filter.MessageEvaluationContext;
import org.apache.activemq.selector.SelectorParser;
import org.apache.activemq.store.MessageRecoveryListener;
import org.apache.activemq.store.MessageStore;
import org.apache.activemq.store.TopicMessageStore;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.util.ByteSequence;

/**
 * ActiveMQ over one KahaDB directory, without any port. Prints JSON, one line for each owner of messages.
 *
 *   produce DIR [halt]   fills the directory with all that a store can hold, dumps it, stops (or dies)
 *   dump DIR             prints queues, durable subscriptions and prepared transactions; consumes nothing
 *   consume DIR          receives everything as a JMS client, prints it in the same form
 *   serve DIR OPTIONS    prints the port of a connector for AMQP with these options, stops at the end of the input
 */
public final class Tandem {
    private static final String URL = "vm://tandem?create=false&jms.watchTopicAdvisories=false";
    private static final PrintStream OUT = System.out;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long FAR_FUTURE = 4102444800000L;

    public static void main(String[] arguments) throws Exception {
        JSON.getFactory().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
        BrokerService broker = open(new File(arguments[1]));
        switch (arguments[0]) {
            case "produce":
                produce(broker);
                dump(broker);
                if (arguments.length > 2 && arguments[2].equals("halt")) {
                    OUT.flush();
                    Runtime.getRuntime().halt(0);
                }
                break;
            case "dump":
                dump(broker);
                break;
            case "consume":
                consume(broker);
                break;
            case "serve":
                TransportConnector connector = broker.addConnector("amqp://127.0.0.1:0?" + arguments[2]);
                broker.startTransportConnector(connector);
                print("port", connector.getConnectUri().getPort());
                OUT.flush();
                System.in.read();
                break;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
        OUT.flush();
        broker.stop();
        broker.waitUntilStopped();
        System.exit(0);
    }

    private static BrokerService open(File directory) throws Exception {
        KahaDBPersistenceAdapter adapter = new KahaDBPersistenceAdapter();
        adapter.setDirectory(directory);
        adapter.setJournalMaxFileLength(1024 * 1024);
        adapter.setConcurrentStoreAndDispatchQueues(false);
        BrokerService broker = new BrokerService();
        broker.setBrokerName("tandem");
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.setUseShutdownHook(false);
        broker.setSchedulerSupport(false);
        broker.setPersistenceAdapter(adapter);
        broker.start();
        broker.waitUntilStarted();
        return broker;
    }

    // ---- produce

    private static void produce(BrokerService broker) throws Exception {
        Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
        connection.setClientID("client-1");
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        kinds(session);
        transactions(connection, session);
        acknowledgements(connection, session);
        subscriptions(connection, session);
        MessageProducer doomed = session.createProducer(session.createQueue("doomed"));
        doomed.send(session.createTextMessage("goes with its queue"));
        doomed.close();
        connection.close();
        broker.removeDestination(new ActiveMQQueue("doomed"));
        distributed();
    }

    private static void kinds(Session session) throws JMSException {
        MessageProducer producer = session.createProducer(session.createQueue("kinds"));
        TextMessage text = session.createTextMessage("h\u00e9llo \ud83d\ude00 \u0000 end");
        text.setBooleanProperty("boolean", true);
        text.setByteProperty("byte", (byte) -5);
        text.setShortProperty("short", (short) -300);
        text.setIntProperty("int", 70000);
        text.setLongProperty("long", 5L);
        text.setFloatProperty("float", 1.5f);
        text.setDoubleProperty("double", -2.25);
        text.setStringProperty("string", "gr\u00fc\u00dfe");
        text.setStringProperty("big", "x".repeat(9000));
        text.setObjectProperty("list", new ArrayList<Object>(Arrays.asList(1, "x", 7L, null, false)));
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("inner", 'Z');
        text.setObjectProperty("map", map);
        text.setJMSCorrelationID("corr-1");
        text.setJMSReplyTo(session.createQueue("answers"));
        text.setJMSType("order");
        text.setStringProperty("JMSXGroupID", "group-1");
        text.setIntProperty("JMSXGroupSeq", 3);
        producer.send(text, DeliveryMode.PERSISTENT, 4, FAR_FUTURE - System.currentTimeMillis());

        producer.send(session.createTextMessage(""), DeliveryMode.PERSISTENT, 0, 0);
        producer.send(session.createTextMessage(), DeliveryMode.PERSISTENT, 9, 0);
        BytesMessage bytes = session.createBytesMessage();
        for (int value = 0; value < 256; value++) {
            bytes.writeByte((byte) value);
        }
        bytes.setJMSReplyTo(new ActiveMQTopic("news"));
        producer.send(bytes);
        producer.send(session.createBytesMessage());
        MapMessage mapped = session.createMapMessage();
        mapped.setString("name", "bob");
        mapped.setInt("age", 42);
        producer.send(mapped);
        StreamMessage stream = session.createStreamMessage();
        stream.writeString("one");
        stream.writeLong(2);
        producer.send(stream);
        producer.send(session.createObjectMessage(Integer.valueOf(5)));
        producer.send(session.createMessage());
        producer.close();
    }

    private static void transactions(Connection connection, Session session) throws JMSException {
        Session transacted = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageProducer producer = transacted.createProducer(transacted.createQueue("transactions"));
        producer.send(transacted.createTextMessage("committed 1"));
        producer.send(transacted.createTextMessage("committed 2"));
        transacted.commit();
        producer.send(transacted.createTextMessage("rolled back"));
        transacted.rollback();
        producer.send(transacted.createTextMessage("committed 3"));
        transacted.commit();
        // The acknowledgement of `committed 1` stands; that of `committed 2` does not.
        MessageConsumer consumer = transacted.createConsumer(transacted.createQueue("transactions"));
        require(consumer.receive(5000));
        transacted.commit();
        require(consumer.receive(5000));
        transacted.rollback();
        consumer.close();
        transacted.close();
    }

    private static void acknowledgements(Connection connection, Session session) throws JMSException {
        MessageProducer producer = session.createProducer(session.createQueue("acknowledged"));
        for (int number = 1; number <= 5; number++) {
            producer.send(session.createTextMessage("number " + number));
        }
        producer.close();
        Session client = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = client.createConsumer(client.createQueue("acknowledged"));
        javax.jms.Message last = null;
        for (int number = 1; number <= 3; number++) {
            last = require(consumer.receive(5000));
        }
        last.acknowledge();
        consumer.close();
        client.close();
    }

    private static void subscriptions(Connection connection, Session session) throws JMSException {
        Topic topic = session.createTopic("news");
        MessageConsumer offline = session.createDurableSubscriber(topic, "offline");
        MessageConsumer choosy = session.createDurableSubscriber(topic, "choosy", "colour = 'red'", false);
        session.createDurableSubscriber(topic, "gone").close();
        MessageProducer producer = session.createProducer(topic);
        producer.send(session.createTextMessage("read by offline"));
        require(offline.receive(5000));
        offline.close();
        choosy.close();
        session.unsubscribe("gone");
        for (int number = 1; number <= 3; number++) {
            TextMessage message = session.createTextMessage("pending " + number);
            message.setStringProperty("colour", number == 2 ? "red" : "blue");
            producer.send(message);
        }
        producer.close();
    }

    private static void distributed() throws Exception {
        javax.jms.XAConnection connection = new ActiveMQXAConnectionFactory(URL).createXAConnection();
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        for (byte number = 1; number <= 3; number++) {
            Xid xid = new XATransactionId();
            ((XATransactionId) xid).setFormatId(-7);
            ((XATransactionId) xid).setGlobalTransactionId(new byte[] {number, 2, 3});
            ((XATransactionId) xid).setBranchQualifier(new byte[] {9});
            resource.start(xid, XAResource.TMNOFLAGS);
            Destination queue = session.createQueue("distributed");
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createTextMessage("branch " + number));
            producer.close();
            resource.end(xid, XAResource.TMSUCCESS);
            resource.prepare(xid);
            if (number == 1) {
                resource.commit(xid, false);
            } else if (number == 2) {
                resource.rollback(xid);
            } // the third stays prepared
        }
        connection.close();
    }

    private static <T> T require(T value) {
        if (value == null) {
            throw new IllegalStateException("a message did not come");
        }
        return value;
    }

    // ---- dump

    private static void dump(BrokerService broker) throws Exception {
        KahaDBPersistenceAdapter adapter = (KahaDBPersistenceAdapter) broker.getPersistenceAdapter();
        Map<String, ActiveMQDestination> sorted = new TreeMap<>();
        for (ActiveMQDestination destination : adapter.getDestinations()) {
            sorted.put(destination.getQualifiedName(), destination);
        }
        for (ActiveMQDestination destination : sorted.values()) {
            if (destination.isQueue()) {
                Listed listed = new Listed(null);
                MessageStore store = adapter.createQueueMessageStore((ActiveMQQueue) destination);
                store.recover(listed);
                print("owner", "queue", "destination", destination.getQualifiedName(), "messages", listed.found);
                continue;
            }
            TopicMessageStore store = adapter.createTopicMessageStore((ActiveMQTopic) destination);
            Map<String, SubscriptionInfo> infos = new TreeMap<>();
            for (SubscriptionInfo info : store.getAllSubscriptions()) {
                infos.put(info.getClientId() + ":" + info.getSubscriptionName(), info);
            }
            for (SubscriptionInfo info : infos.values()) {
                // From the oldest unacknowledged message on, KahaDB recovers what a selector passed over too.
                Listed listed = new Listed(info.getSelector());
                store.recoverSubscription(info.getClientId(), info.getSubscriptionName(), listed);
                subscription(info, listed.found);
            }
        }
        for (TransactionId id : broker.getBroker().getPreparedTransactions(broker.getAdminConnectionContext())) {
            XATransactionId xid = (XATransactionId) id;
            byte[] global = xid.getGlobalTransactionId();
            byte[] branch = xid.getBranchQualifier();
            print(
                "owner", "prepared",
                "formatId", xid.getFormatId(),
                "globalId", hex(global, 0, global.length),
                "branch", hex(branch, 0, branch.length));
        }
    }

    private static void subscription(SubscriptionInfo info, List<Object> messages) throws Exception {
        print(
            "owner", "subscription",
            "destination", info.getDestination().getQualifiedName(),
            "clientId", info.getClientId(),
            "name", info.getSubscriptionName(),
            "selector", info.getSelector(),
            "noLocal", info.isNoLocal(),
            "messages", messages);
    }

    private static final class Listed implements MessageRecoveryListener {
        final List<Object> found = new ArrayList<>();
        private final BooleanExpression selector;

        Listed(String selector) throws Exception {
            this.selector = selector == null ? null : SelectorParser.parse(selector);
        }

        @Override
        public boolean recoverMessage(Message message) throws Exception {
            MessageEvaluationContext context = new MessageEvaluationContext();
            context.setMessageReference(message);
            if (selector == null || selector.matches(context)) {
                found.add(described((ActiveMQMessage) message));
            }
            return true;
        }

        @Override
        public boolean recoverMessageReference(MessageId reference) {
            throw new IllegalStateException("KahaDB recovers whole messages");
        }

        @Override
        public boolean hasSpace() {
            return true;
        }

        @Override
        public boolean isDuplicate(MessageId id) {
            return false;
        }
    }

    // ---- consume

    private static void consume(BrokerService broker) throws Exception {
        KahaDBPersistenceAdapter adapter = (KahaDBPersistenceAdapter) broker.getPersistenceAdapter();
        for (ActiveMQDestination destination : adapter.getDestinations()) {
            if (destination.isQueue()) {
                Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
                connection.start();
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                List<Object> found = drain(session.createConsumer(destination));
                print("owner", "queue", "destination", destination.getQualifiedName(), "messages", found);
                connection.close();
                continue;
            }
            TopicMessageStore store = adapter.createTopicMessageStore((ActiveMQTopic) destination);
            for (SubscriptionInfo info : store.getAllSubscriptions()) {
                Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
                connection.setClientID(info.getClientId());
                connection.start();
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                subscription(info, drain(session.createDurableSubscriber(
                    (Topic) destination, info.getSubscriptionName(), info.getSelector(), info.isNoLocal())));
                connection.close();
            }
        }
    }

    private static List<Object> drain(MessageConsumer consumer) throws Exception {
        List<Object> found = new ArrayList<>();
        for (javax.jms.Message m = consumer.receive(2000); m != null; m = consumer.receive(500)) {
            found.add(described((ActiveMQMessage) m));
        }
        return found;
    }

    // ---- JSON

    private static Map<String, Object> described(ActiveMQMessage message) throws Exception {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("id", message.getMessageId().toProducerKey());
        fields.put("jmsId", message.getJMSMessageID());
        fields.put("destination", message.getDestination().getQualifiedName());
        fields.put("kind", (int) message.getDataStructureType());
        fields.put("body", body(message));
        Map<String, Object> properties = new LinkedHashMap<>();
        for (Map.Entry<String, Object> entry : message.getProperties().entrySet()) {
            properties.put(entry.getKey(), typed(entry.getValue()));
        }
        fields.put("properties", properties);
        fields.put("persistent", message.isPersistent());
        fields.put("priority", (int) message.getPriority());
        fields.put("timestamp", message.getTimestamp());
        fields.put("expiration", message.getExpiration());
        fields.put("correlationId", message.getCorrelationId());
        fields.put("replyTo", name(message.getReplyTo()));
        fields.put("type", message.getType());
        fields.put("groupId", message.getGroupID());
        fields.put("groupSequence", message.getGroupSequence());
        fields.put("userId", message.getUserID());
        fields.put("redeliveryCounter", message.getRedeliveryCounter());
        fields.put("originalDestination", name(message.getOriginalDestination()));
        return fields;
    }

    private static Object body(ActiveMQMessage message) throws Exception {
        if (message instanceof ActiveMQTextMessage) {
            String text = ((ActiveMQTextMessage) message).getText();
            return text == null ? "" : text;
        }
        if (message instanceof ActiveMQBytesMessage) {
            ActiveMQBytesMessage bytes = (ActiveMQBytesMessage) message.copy();
            bytes.setReadOnlyBody(true);
            byte[] data = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(data);
            return hex(data, 0, data.length);
        }
        ByteSequence content = message.getContent();
        return content == null ? "" : hex(content.data, content.offset, content.length);
    }

    private static Object typed(Object value) {
        if (value == null) {
            return Arrays.asList("null", null);
        }
        if (value instanceof Map) {
            Map<String, Object> map = new LinkedHashMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                map.put(entry.getKey().toString(), typed(entry.getValue()));
            }
            return Arrays.asList("map", map);
        }
        if (value instanceof List) {
            List<Object> list = new ArrayList<>();
            for (Object item : (List<?>) value) {
                list.add(typed(item));
            }
            return Arrays.asList("list", list);
        }
        if (value instanceof byte[]) {
            return Arrays.asList("bytes", hex((byte[]) value, 0, ((byte[]) value).length));
        }
        if (value instanceof Number || value instanceof Boolean) {
            return Arrays.asList(value.getClass().getSimpleName().toLowerCase(), value);
        }
        String type = value instanceof Character ? "character" : "string"; // UTF8Buffer is text too
        return Arrays.asList(type, value.toString());
    }

    private static String name(ActiveMQDestination destination) {
        return destination == null ? null : destination.getQualifiedName();
    }

    private static String hex(byte[] data, int offset, int length) {
        StringBuilder text = new StringBuilder(2 * length);
        for (int at = offset; at < offset + length; at++) {
            text.append(String.format("%02x", data[at]));
        }
        return text.toString();
    }

    private static void print(Object... pairs) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            line.put((String) pairs[at], pairs[at + 1]);
        }
        OUT.println(JSON.writeValueAsString(line));
    }
}
