import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.QueueBrowser;
import javax.jms.Queue;
import javax.jms.Session;
import javax.jms.TemporaryQueue;
import javax.jms.TemporaryTopic;
import javax.jms.Topic;
import javax.jms.XASession;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQSession;
import org.apache.activemq.ActiveMQXAConnectionFactory;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQTempDestination;
import org.apache.activemq.command.XATransactionId;

/**
 * The real JMS client, step by step. Standard input holds one JSON request a line:
 *
 *   {"id": 7, "lane": "main", "do": "receive", "on": "consumer-3", ...}
 *
 * and standard output one JSON answer for each: {"id": 7, "answer": ...} or {"id": 7, "error": {"class", "message", ...}}.
 * Requests of one lane are done one after the other; lanes do not wait for each other. What a request makes (connection,
 * session, consumer, message ...) stands under the name that the request gives ("as") or that the answer tells.
 */
public final class Jms {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;

    private final Map<String, ExecutorService> lanes = new ConcurrentHashMap<>();
    private final Map<String, Object> things = new ConcurrentHashMap<>();
    private final Map<String, Heard> listening = new ConcurrentHashMap<>();
    private final Map<String, Destination> temporary = new ConcurrentHashMap<>();
    private final AtomicInteger messages = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        Jms jms = new Jms();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            jms.lanes.computeIfAbsent(request.get("lane").asText(), name -> Executors.newSingleThreadExecutor())
                .execute(() -> jms.answer(request));
        }
        System.exit(0);
    }

    private void answer(JsonNode request) {
        ObjectNode line = JSON.createObjectNode().put("id", request.get("id").asInt());
        try {
            line.set("answer", JSON.valueToTree(act(request)));
        } catch (Throwable problem) {
            line.set("error", error(problem));
        }
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static ObjectNode error(Throwable problem) {
        ObjectNode error = JSON.createObjectNode();
        error.put("class", problem.getClass().getName());
        error.put("message", String.valueOf(problem.getMessage()));
        if (problem instanceof XAException) {
            error.put("code", ((XAException) problem).errorCode);
        }
        List<String> causes = new ArrayList<>();
        for (Throwable cause = problem.getCause(); cause != null; cause = cause.getCause()) {
            causes.add(cause.getClass().getName() + ": " + cause.getMessage());
        }
        error.set("causes", JSON.valueToTree(causes));
        return error;
    }

    private Object act(JsonNode request) throws Exception {
        switch (request.get("do").asText()) {
            case "connect": return connect(request);
            case "start": ((Connection) on(request)).start(); return null;
            case "stop": ((Connection) on(request)).stop(); return null;
            case "exceptions": return JSON.valueToTree(heard(request, ".exceptions").wait(count(request), timeout(request)));
            case "interruptions": return JSON.valueToTree(heard(request, ".transport").wait(count(request), timeout(request)));
            case "session": return session(request);
            case "producer": return keep(request, sessionNamed(request.get("on")).createProducer(destination(request, "to")));
            case "consumer": return consumer(request);
            case "durable": return durable(request);
            case "unsubscribe": sessionNamed(request.get("on")).unsubscribe(text(request, "name")); return null;
            case "send": return send(request);
            case "receive": return receive(request);
            case "heard": return heard(request, "").wait(count(request), timeout(request));
            case "browse": return browse(request);
            case "acknowledge": ((Message) on(request)).acknowledge(); return null;
            case "recover": ((Session) on(request)).recover(); return null;
            case "commit": ((Session) on(request)).commit(); return null;
            case "rollback": ((Session) on(request)).rollback(); return null;
            case "temporaryQueue": return temporary(sessionNamed(request.get("on")).createTemporaryQueue());
            case "temporaryTopic": return temporary(sessionNamed(request.get("on")).createTemporaryTopic());
            case "delete": delete(request); return null;
            case "destroy": ((ActiveMQConnection) on(request)).destroyDestination((ActiveMQDestination) destination(request, "what")); return null;
            case "close": close(on(request)); return null;
            case "destinations": return destinations(request);
            case "xa": return xa(request);
            case "consumers": return consumers(request);
            default: throw new IllegalArgumentException(request.toString());
        }
    }

    private Object connect(JsonNode request) throws Exception {
        String url = text(request, "url");
        boolean isXa = request.path("xa").asBoolean();
        ActiveMQConnectionFactory factory = isXa ? new ActiveMQXAConnectionFactory(url) : new ActiveMQConnectionFactory(url);
        String user = text(request, "user");
        String password = text(request, "password");
        factory.setTrustAllPackages(true);
        ActiveMQConnection connection = (ActiveMQConnection) (
            isXa ? ((ActiveMQXAConnectionFactory) factory).createXAConnection(user, password) : factory.createConnection(user, password));
        String name = text(request, "as");
        Heard exceptions = new Heard();
        Heard transport = new Heard();
        listening.put(name + ".exceptions", exceptions);
        listening.put(name + ".transport", transport);
        connection.setExceptionListener(problem -> exceptions.add(error(problem)));
        connection.setClientInternalExceptionListener(problem -> exceptions.add(error(problem)));
        connection.addTransportListener(new Transport(transport));
        try {
            if (request.hasNonNull("clientId")) {
                connection.setClientID(text(request, "clientId"));
            }
            if (request.path("start").asBoolean(true)) {
                connection.start();
            }
        } catch (JMSException problem) {
            connection.close();
            throw problem;
        }
        keep(request, connection);
        ObjectNode answer = JSON.createObjectNode();
        answer.put("connectionId", connection.getConnectionInfo().getConnectionId().getValue());
        answer.put("clientId", connection.getClientID());
        answer.put("broker", String.valueOf(connection.getBrokerName()));
        return answer;
    }

    private Object session(JsonNode request) throws Exception {
        String mode = text(request, "mode");
        Connection connection = (Connection) on(request);
        switch (mode) {
            case "AUTO": return keep(request, connection.createSession(false, Session.AUTO_ACKNOWLEDGE));
            case "CLIENT": return keep(request, connection.createSession(false, Session.CLIENT_ACKNOWLEDGE));
            case "DUPS_OK": return keep(request, connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE));
            case "INDIVIDUAL": return keep(request, connection.createSession(false, ActiveMQSession.INDIVIDUAL_ACKNOWLEDGE));
            case "TRANSACTED": return keep(request, connection.createSession(true, Session.SESSION_TRANSACTED));
            case "XA": return keep(request, ((javax.jms.XAConnection) connection).createXASession());
            default: throw new IllegalArgumentException(mode);
        }
    }

    private Object consumer(JsonNode request) throws Exception {
        MessageConsumer consumer = sessionNamed(request.get("on")).createConsumer(
            destination(request, "from"), text(request, "selector"), request.path("noLocal").asBoolean());
        return listen(request, consumer);
    }

    private Object durable(JsonNode request) throws Exception {
        MessageConsumer consumer = sessionNamed(request.get("on")).createDurableSubscriber(
            (Topic) destination(request, "from"), text(request, "name"), text(request, "selector"),
            request.path("noLocal").asBoolean());
        return listen(request, consumer);
    }

    /** With "listens" what comes is written down; the first "throws" deliveries end in an exception. */
    private Object listen(JsonNode request, MessageConsumer consumer) throws Exception {
        if (request.path("listens").asBoolean()) {
            Heard heard = new Heard();
            AtomicInteger throwsLeft = new AtomicInteger(request.path("throws").asInt());
            listening.put(text(request, "as"), heard);
            consumer.setMessageListener(message -> {
                try {
                    heard.add(Messages.told(message, keepMessage(message)));
                } catch (Exception problem) {
                    heard.add(error(problem));
                }
                if (throwsLeft.getAndDecrement() > 0) {
                    throw new IllegalStateException("as the test wants it");
                }
            });
        }
        return keep(request, consumer);
    }

    private Object send(JsonNode request) throws Exception {
        Object on = on(request);
        Session session = sessionNamed(request.get("session"));
        MessageProducer producer = (MessageProducer) on;
        List<String> ids = new ArrayList<>();
        int mode = request.path("persistent").asBoolean(true) ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT;
        int priority = request.path("priority").asInt(4);
        long ttl = request.path("ttl").asLong(0);
        for (JsonNode body : request.get("bodies")) {
            Message message = Messages.made(session, text(request, "kind"), body);
            Messages.dress(message, request);
            if (request.hasNonNull("replyTo")) {
                message.setJMSReplyTo(destination(request, "replyTo"));
            }
            if (request.hasNonNull("to")) {
                producer.send(destination(request, "to"), message, mode, priority, ttl);
            } else {
                producer.send(message, mode, priority, ttl);
            }
            ids.add(message.getJMSMessageID());
        }
        return ids;
    }

    private Object receive(JsonNode request) throws Exception {
        MessageConsumer consumer = (MessageConsumer) on(request);
        long timeout = timeout(request);
        Message message = timeout == 0 ? consumer.receiveNoWait() : consumer.receive(timeout);
        return message == null ? null : Messages.told(message, keepMessage(message));
    }

    private Object browse(JsonNode request) throws Exception {
        QueueBrowser browser = sessionNamed(request.get("on")).createBrowser((Queue) destination(request, "from"), text(request, "selector"));
        List<ObjectNode> found = new ArrayList<>();
        java.util.Enumeration<?> enumeration = browser.getEnumeration();
        int count = request.path("count").asInt(Integer.MAX_VALUE);
        while (found.size() < count && enumeration.hasMoreElements()) {
            Message message = (Message) enumeration.nextElement();
            found.add(Messages.told(message, ""));
        }
        browser.close();
        return found;
    }

    private Object temporary(Destination made) {
        temporary.put(((ActiveMQDestination) made).getQualifiedName(), made);
        return ((ActiveMQDestination) made).getQualifiedName();
    }

    private void delete(JsonNode request) throws Exception {
        Destination found = temporary.get(text(request, "what"));
        if (found instanceof TemporaryQueue) {
            ((TemporaryQueue) found).delete();
        } else {
            ((TemporaryTopic) found).delete();
        }
    }

    /** Waits until the connection's destination source knows all of "names", then tells all that it knows. */
    private Object destinations(JsonNode request) throws Exception {
        ActiveMQConnection connection = (ActiveMQConnection) on(request);
        Object source = connection.getDestinationSource();
        long until = System.nanoTime() + timeout(request) * 1_000_000;
        while (true) {
            List<String> known = new ArrayList<>();
            org.apache.activemq.advisory.DestinationSource all = (org.apache.activemq.advisory.DestinationSource) source;
            all.getQueues().forEach(queue -> known.add(queue.getQualifiedName()));
            all.getTopics().forEach(topic -> known.add(topic.getQualifiedName()));
            all.getTemporaryQueues().forEach(queue -> known.add(queue.getQualifiedName()));
            all.getTemporaryTopics().forEach(topic -> known.add(topic.getQualifiedName()));
            List<String> wanted = new ArrayList<>();
            request.path("names").forEach(name -> wanted.add(name.asText()));
            List<String> gone = new ArrayList<>();
            request.path("gone").forEach(name -> gone.add(name.asText()));
            if ((known.containsAll(wanted) && gone.stream().noneMatch(known::contains)) || System.nanoTime() > until) {
                return known;
            }
            Thread.sleep(10);
        }
    }

    /** ConsumerEventSource: counts of consumers as they come and go. */
    private Object consumers(JsonNode request) throws Exception {
        org.apache.activemq.advisory.ConsumerEventSource source =
            new org.apache.activemq.advisory.ConsumerEventSource((Connection) on(request), destination(request, "of"));
        Heard heard = new Heard();
        listening.put(text(request, "as"), heard);
        source.setConsumerListener(event -> heard.add(
            JSON.createObjectNode().put("count", event.getConsumerCount()).put("isStarted", event.isStarted())));
        source.start();
        return keep(request, source);
    }

    private Object xa(JsonNode request) throws Exception {
        XAResource resource = ((XASession) on(request)).getXAResource();
        Xid xid = null;
        if (request.hasNonNull("xid")) {
            XATransactionId id = new XATransactionId();
            id.setFormatId(request.path("format").asInt(77));
            id.setGlobalTransactionId(text(request, "xid").getBytes(StandardCharsets.UTF_8));
            id.setBranchQualifier(request.path("branch").asText("b").getBytes(StandardCharsets.UTF_8));
            xid = id;
        }
        switch (text(request, "step")) {
            case "start": resource.start(xid, XAResource.TMNOFLAGS); return null;
            case "join": resource.start(xid, XAResource.TMJOIN); return null;
            case "end": resource.end(xid, XAResource.TMSUCCESS); return null;
            case "suspend": resource.end(xid, XAResource.TMSUSPEND); return null;
            case "resume": resource.start(xid, XAResource.TMRESUME); return null;
            case "prepare": return resource.prepare(xid);
            case "commit": resource.commit(xid, false); return null;
            case "commitOnePhase": resource.commit(xid, true); return null;
            case "rollback": resource.rollback(xid); return null;
            case "forget": resource.forget(xid); return null;
            case "recover":
                List<String> found = new ArrayList<>();
                for (Xid each : resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)) {
                    found.add(new String(each.getGlobalTransactionId(), StandardCharsets.UTF_8));
                }
                return found;
            default: throw new IllegalArgumentException(request.toString());
        }
    }

    private void close(Object thing) throws Exception {
        if (thing instanceof Connection) {
            ((Connection) thing).close();
        } else if (thing instanceof Session) {
            ((Session) thing).close();
        } else if (thing instanceof MessageConsumer) {
            ((MessageConsumer) thing).close();
        } else if (thing instanceof MessageProducer) {
            ((MessageProducer) thing).close();
        } else {
            ((org.apache.activemq.Service) thing).stop();
        }
    }

    private Object keep(JsonNode request, Object thing) {
        things.put(text(request, "as"), thing);
        return null;
    }

    private String keepMessage(Message message) {
        String name = "message-" + messages.incrementAndGet();
        things.put(name, message);
        return name;
    }

    private Object on(JsonNode request) {
        Object found = things.get(text(request, "on"));
        if (found == null) {
            throw new IllegalArgumentException("nothing is called " + text(request, "on"));
        }
        return found;
    }

    private Session sessionNamed(JsonNode name) {
        return (Session) things.get(name.asText());
    }

    private Heard heard(JsonNode request, String suffix) {
        return listening.get(text(request, "on") + suffix);
    }

    private Destination destination(JsonNode request, String field) throws JMSException {
        String name = text(request, field);
        if (name == null) {
            return null;
        }
        Destination own = temporary.get(name);
        return own != null ? own : ActiveMQDestination.createDestination(name, ActiveMQDestination.QUEUE_TYPE);
    }

    private static String text(JsonNode request, String field) {
        return request.hasNonNull(field) ? request.get(field).asText() : null;
    }

    private static int count(JsonNode request) {
        return request.path("count").asInt(1);
    }

    private static long timeout(JsonNode request) {
        return request.path("timeout").asLong(10_000);
    }

    /** What listeners heard, for whoever waits for it. */
    private static final class Heard {
        private final List<ObjectNode> all = new ArrayList<>();

        synchronized void add(ObjectNode one) {
            all.add(one);
            notifyAll();
        }

        /** All, as soon as there are so many, or the time is up. */
        synchronized List<ObjectNode> wait(int count, long timeout) throws InterruptedException {
            long until = System.nanoTime() + timeout * 1_000_000;
            for (long left = timeout; all.size() < count && left > 0; left = (until - System.nanoTime()) / 1_000_000) {
                wait(left);
            }
            return new ArrayList<>(all);
        }
    }

    private static final class Transport extends org.apache.activemq.transport.DefaultTransportListener {
        private final Heard heard;

        Transport(Heard heard) {
            this.heard = heard;
        }

        @Override
        public void transportInterupted() {
            heard.add(JSON.createObjectNode().put("event", "interrupted"));
        }

        @Override
        public void transportResumed() {
            heard.add(JSON.createObjectNode().put("event", "resumed"));
        }
    }
}
