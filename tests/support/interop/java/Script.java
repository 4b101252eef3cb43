import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TextMessage;
import javax.jms.Topic;
import javax.jms.XAConnection;
import javax.jms.XASession;
import javax.transaction.xa.XAResource;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQXAConnectionFactory;
import org.apache.activemq.RedeliveryPolicy;
import org.apache.activemq.ScheduledMessage;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTopic;
import org.apache.activemq.command.MessageId;
import org.apache.activemq.command.SubscriptionInfo;
import org.apache.activemq.command.XATransactionId;
import org.apache.activemq.filter.BooleanExpression;
import org.apache.activemq.filter.MessageEvaluationContext;
import org.apache.activemq.selector.SelectorParser;
import org.apache.activemq.store.MessageRecoveryListener;
import org.apache.activemq.store.MessageStore;
import org.apache.activemq.store.TopicMessageStore;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/**
 * ActiveMQ over one KahaDB directory, step by step. Standard input holds one JSON step a line; the first opens.
 *
 *   {"do": "open", "directory", "fileLength", "prioritized", "persistRedelivered", "compact", "scheduler"}
 *   {"do": "send", "to": "queue://Q", "count", "size", "priority", "expires", "delay", "xa", "commit": false}
 *   {"do": "fill", "bytes"}                   writes journal and leaves nothing: sends that are rolled back
 *   {"do": "receive", "from", "count", "xa", "commit": false, "redelivered"}
 *   {"do": "prepare" | "commit" | "rollback", "xa"}
 *   {"do": "subscribe" | "unsubscribe", "topic", "client", "name", "selector"}
 *   {"do": "take", "topic", "client", "name", "count"}
 *   {"do": "delete", "queue"}   {"do": "cleanup", "times"}   {"do": "checkpoint"}   {"do": "files"}
 *   {"do": "dump"}   {"do": "stop"}   {"do": "halt"}   {"do": "sleep", "ms"}
 *
 * Answers are JSON lines: those of `dump` (one for each owner, ids and bodies in order of delivery) and `files`.
 */
public final class Script {
    private static final String URL = "vm://script?create=false&jms.watchTopicAdvisories=false&jms.prefetchPolicy.all=1";
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, XASession> branches = new HashMap<>();
    private final Map<String, XAConnection> branchConnections = new HashMap<>();
    private final List<Connection> left = new ArrayList<>();
    private final Map<String, MessageConsumer> staying = new HashMap<>();
    private BrokerService broker;
    private KahaDBPersistenceAdapter adapter;
    private int bodies;

    public static void main(String[] arguments) throws Exception {
        Script script = new Script();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            script.step(JSON.readTree(line));
        }
        System.out.flush();
        System.exit(0);
    }

    private void step(JsonNode step) throws Exception {
        switch (step.get("do").asText()) {
            case "open": open(step); break;
            case "send": send(step); break;
            case "fill": fill(step); break;
            case "receive": receive(step); break;
            case "prepare": resource(step).prepare(xid(step)); break;
            case "commit": resource(step).commit(xid(step), step.path("onePhase").asBoolean()); break;
            case "rollback": resource(step).rollback(xid(step)); break;
            case "subscribe": subscribe(step); break;
            case "unsubscribe": unsubscribe(step); break;
            case "take": take(step); break;
            case "stay": staying.put(step.get("name").asText(), subscriber(step)); break;
            case "hear": hear(step); break;
            case "delete": // as the store is told of it; the region would purge the queue first, where it knows it
                adapter.createQueueMessageStore(new ActiveMQQueue(step.get("queue").asText())).removeAllMessages(null);
                break;
            case "cleanup": cleanup(step); break;
            case "checkpoint": adapter.checkpoint(false); break;
            case "files": files(); break;
            case "dump": dump(); break;
            case "sleep": Thread.sleep(step.get("ms").asLong()); break;
            case "stop":
                broker.stop();
                broker.waitUntilStopped();
                break;
            case "halt":
                System.out.flush();
                Runtime.getRuntime().halt(0);
                break;
            default: throw new IllegalArgumentException(step.toString());
        }
    }

    private void open(JsonNode step) throws Exception {
        adapter = new KahaDBPersistenceAdapter();
        adapter.setDirectory(new File(step.get("directory").asText()));
        adapter.setJournalMaxFileLength(step.path("fileLength").asInt(1024 * 1024));
        adapter.setConcurrentStoreAndDispatchQueues(false);
        adapter.setCheckpointInterval(3600_000);
        adapter.setCleanupInterval(3600_000);
        adapter.setEnableAckCompaction(step.path("compact").asBoolean());
        adapter.setCompactAcksAfterNoGC(1);
        adapter.setCompactAcksIgnoresStoreGrowth(true);
        adapter.setCleanupOnStop(false);
        PolicyEntry policy = new PolicyEntry();
        policy.setPrioritizedMessages(step.path("prioritized").asBoolean());
        policy.setPersistJMSRedelivered(step.path("persistRedelivered").asBoolean());
        policy.setExpireMessagesPeriod(0);
        PolicyMap policies = new PolicyMap();
        policies.setDefaultEntry(policy);
        broker = new BrokerService();
        broker.setBrokerName("script");
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.setUseShutdownHook(false);
        broker.setSchedulerSupport(step.path("scheduler").asBoolean());
        if (step.path("scheduler").asBoolean()) {
            broker.setSchedulerDirectoryFile(new File(step.get("directory").asText(), "scheduler"));
        }
        broker.setDestinationPolicy(policies);
        broker.setStoreOpenWireVersion(step.path("openwire").asInt(11));
        if (step.has("indexDirectory")) {
            adapter.setIndexDirectory(new File(step.get("indexDirectory").asText()));
        }
        broker.setPersistenceAdapter(adapter);
        broker.start();
        broker.waitUntilStarted();
    }

    // ---- messages

    private void send(JsonNode step) throws Exception {
        Session session = session(step);
        MessageProducer producer = session.createProducer(destination(step.get("to").asText()));
        JsonNode priorities = step.path("priority");
        for (int number = 0; number < step.path("count").asInt(1); number++) {
            int priority = priorities.isArray()
                ? priorities.get(number % priorities.size()).asInt()
                : priorities.asInt(4);
            String text = "body " + ++bodies;
            Message message;
            if (step.has("size")) {
                BytesMessage bytes = session.createBytesMessage();
                bytes.writeBytes(new byte[step.get("size").asInt()]);
                message = bytes;
            } else {
                TextMessage plain = session.createTextMessage(text);
                message = plain;
            }
            if (step.has("delay")) {
                message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, step.get("delay").asLong());
            }
            producer.send(message, DeliveryMode.PERSISTENT, priority, step.path("expires").asLong());
        }
        producer.close();
        finish(step, session);
    }

    private void fill(JsonNode step) throws Exception {
        Connection connection = connect(null);
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageProducer producer = session.createProducer(session.createQueue("filler"));
        for (int left = step.get("bytes").asInt(); left > 0; left -= 2000) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(new byte[1500]);
            producer.send(message);
            session.rollback();
        }
        connection.close();
    }

    private void receive(JsonNode step) throws Exception {
        if (step.path("redelivered").asBoolean()) { // delivered, and left by a client that goes: the mark is stored
            Connection connection = connect(null);
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(destination(step.get("from").asText()));
            require(consumer.receive(5000));
            connection.close();
            return;
        }
        Session session = session(step);
        MessageConsumer consumer = session.createConsumer(destination(step.get("from").asText()));
        for (int number = 0; number < step.path("count").asInt(1); number++) {
            require(consumer.receive(5000));
        }
        if (!step.has("xa")) {
            consumer.close();
        }
        finish(step, session);
    }

    private Session session(JsonNode step) throws Exception {
        if (step.has("xa")) {
            XASession branch = branch(step);
            branch.getXAResource().start(xid(step), XAResource.TMNOFLAGS);
            return branch;
        }
        Connection connection = connect(null);
        boolean isTransacted = step.has("commit");
        return connection.createSession(isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
    }

    private void finish(JsonNode step, Session session) throws Exception {
        if (step.has("xa")) {
            resource(step).end(xid(step), XAResource.TMSUCCESS);
        } else if (step.has("commit")) {
            if (step.get("commit").asText().equals("open")) {
                return; // the transaction stays as it is
            }
            if (step.get("commit").asBoolean()) {
                session.commit();
            } else {
                session.rollback();
            }
            left.remove(left.size() - 1).close();
        } else {
            left.remove(left.size() - 1).close();
        }
    }

    private Connection connect(String client) throws Exception {
        Connection connection = new ActiveMQConnectionFactory(URL).createConnection();
        RedeliveryPolicy again = new RedeliveryPolicy();
        again.setMaximumRedeliveries(RedeliveryPolicy.NO_MAXIMUM_REDELIVERIES);
        ((ActiveMQConnection) connection).setRedeliveryPolicy(again);
        if (client != null) {
            connection.setClientID(client);
        }
        connection.start();
        left.add(connection);
        return connection;
    }

    // ---- distributed transactions

    private XASession branch(JsonNode step) throws Exception {
        String name = step.get("xa").asText();
        if (!branches.containsKey(name)) {
            XAConnection connection = new ActiveMQXAConnectionFactory(URL).createXAConnection();
            connection.start();
            branchConnections.put(name, connection);
            branches.put(name, connection.createXASession());
        }
        return branches.get(name);
    }

    private XAResource resource(JsonNode step) throws Exception {
        return branch(step).getXAResource();
    }

    private static XATransactionId xid(JsonNode step) {
        XATransactionId xid = new XATransactionId();
        xid.setFormatId(7);
        xid.setGlobalTransactionId(step.get("xa").asText().getBytes(StandardCharsets.UTF_8));
        xid.setBranchQualifier(new byte[] {1});
        return xid;
    }

    // ---- durable subscriptions

    private void subscribe(JsonNode step) throws Exception {
        subscriber(step);
        left.remove(left.size() - 1).close();
    }

    private MessageConsumer subscriber(JsonNode step) throws Exception {
        Connection connection = connect(step.get("client").asText());
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic(step.get("topic").asText());
        String selector = step.has("selector") ? step.get("selector").asText() : null;
        return session.createDurableSubscriber(topic, step.get("name").asText(), selector, false);
    }

    private void unsubscribe(JsonNode step) throws Exception {
        Connection connection = connect(step.get("client").asText());
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        session.unsubscribe(step.get("name").asText());
        left.remove(left.size() - 1).close();
    }

    private void take(JsonNode step) throws Exception {
        MessageConsumer consumer = subscriber(step);
        for (int number = 0; number < step.path("count").asInt(1); number++) {
            require(consumer.receive(5000));
        }
        left.remove(left.size() - 1).close();
    }

    private void hear(JsonNode step) throws Exception {
        for (int number = 0; number < step.path("count").asInt(1); number++) {
            require(staying.get(step.get("name").asText()).receive(5000));
        }
    }

    // ---- the store

    private void cleanup(JsonNode step) throws Exception {
        for (int number = 0; number < step.path("times").asInt(1); number++) {
            adapter.checkpoint(true);
            Thread.sleep(step.path("ms").asLong(50));
        }
    }

    private void files() throws Exception {
        List<Integer> found = new ArrayList<>();
        for (File file : adapter.getDirectory().listFiles()) {
            String name = file.getName();
            if (name.startsWith("db-") && name.endsWith(".log")) {
                found.add(Integer.valueOf(name.substring(3, name.length() - 4)));
            }
        }
        found.sort(null);
        print(Map.of("files", found));
    }

    private void dump() throws Exception {
        Map<String, ActiveMQDestination> sorted = new TreeMap<>();
        for (ActiveMQDestination destination : adapter.getDestinations()) {
            sorted.put(destination.getQualifiedName(), destination);
        }
        for (ActiveMQDestination destination : sorted.values()) {
            if (destination.isQueue()) {
                Listed listed = new Listed(null);
                MessageStore store = adapter.createQueueMessageStore((ActiveMQQueue) destination);
                store.recover(listed);
                print(line(destination.getQualifiedName(), null, listed.found));
                continue;
            }
            TopicMessageStore store = adapter.createTopicMessageStore((ActiveMQTopic) destination);
            for (SubscriptionInfo info : store.getAllSubscriptions()) {
                // From the oldest unacknowledged message on, KahaDB recovers what a selector passed over too.
                Listed listed = new Listed(info.getSelector());
                store.recoverSubscription(info.getClientId(), info.getSubscriptionName(), listed);
                String key = info.getClientId() + ":" + info.getSubscriptionName();
                print(line(destination.getQualifiedName(), key, listed.found));
            }
        }
        List<String> prepared = new ArrayList<>();
        for (Object id : broker.getBroker().getPreparedTransactions(broker.getAdminConnectionContext())) {
            prepared.add(new String(((XATransactionId) id).getGlobalTransactionId(), StandardCharsets.UTF_8));
        }
        print(Map.of("prepared", prepared));
    }

    private static Map<String, Object> line(String destination, String subscription, List<Object> found) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("destination", destination);
        line.put("subscription", subscription);
        line.put("messages", found);
        return line;
    }

    private static final class Listed implements MessageRecoveryListener {
        final List<Object> found = new ArrayList<>();
        private final BooleanExpression selector;

        Listed(String selector) throws Exception {
            this.selector = selector == null ? null : SelectorParser.parse(selector);
        }

        @Override
        public boolean recoverMessage(org.apache.activemq.command.Message message) throws Exception {
            MessageEvaluationContext context = new MessageEvaluationContext();
            context.setMessageReference(message);
            if (selector == null || selector.matches(context)) {
                found.add(message.getMessageId().toProducerKey());
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

    private static ActiveMQDestination destination(String name) {
        return ActiveMQDestination.createDestination(name, ActiveMQDestination.QUEUE_TYPE);
    }

    private static void require(Message message) {
        if (message == null) {
            throw new IllegalStateException("a message did not come");
        }
    }

    private static void print(Map<String, Object> line) throws Exception {
        System.out.println(JSON.writeValueAsString(line));
    }
}
