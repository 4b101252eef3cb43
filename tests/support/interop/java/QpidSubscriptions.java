import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;

import org.apache.qpid.jms.JmsConnectionFactory;

/** Durable and shared subscriptions of JMS 3.1, with qpid-jms-client. Prints a line for each step. */
public final class QpidSubscriptions {
    private static final long SILENCE_MS = 300;

    private static JmsConnectionFactory factory;
    private static Session publishing;
    private static Topic topic;
    private static MessageProducer producer;

    private interface Step {
        String run() throws JMSException;
    }

    public static void main(String[] arguments) throws Exception {
        factory = new JmsConnectionFactory(arguments[0]);
        Connection publisher = connection(null);
        publishing = publisher.createSession(false, Session.AUTO_ACKNOWLEDGE);
        topic = publishing.createTopic("prices");
        producer = publishing.createProducer(topic);

        Connection till = connection("till");
        Session session = till.createSession(false, Session.AUTO_ACKNOWLEDGE);

        session.createDurableConsumer(topic, "plain").close();
        publish("a");
        MessageConsumer plain = session.createDurableConsumer(topic, "plain");
        print("durable", () -> receive(plain));
        print("unsubscribe while active", () -> unsubscribe(session, "plain"));
        plain.close();
        print("unsubscribe", () -> unsubscribe(session, "plain"));
        print("unsubscribe again", () -> unsubscribe(session, "plain"));

        MessageConsumer picky = session.createDurableConsumer(topic, "picky", "n = 2", true);
        MessageProducer own = session.createProducer(topic);
        TextMessage mine = session.createTextMessage("mine");
        mine.setIntProperty("n", 2);
        own.send(mine);
        publish("b", 1);
        publish("c", 2);
        print("selector and no-local", () -> receive(picky) + " " + receive(picky));
        picky.close();
        unsubscribe(session, "picky");

        session.createSharedDurableConsumer(topic, "shared").close();
        publish("d");
        MessageConsumer one = session.createSharedDurableConsumer(topic, "shared");
        print("shared durable", () -> receive(one));
        Session second = till.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer two = second.createSharedDurableConsumer(topic, "shared");
        print("each gets some", () -> shares(one, two));
        print("another selector", () -> kind(session.createSharedDurableConsumer(topic, "shared", "n = 1")));
        two.close();
        Connection elsewhere = connection("elsewhere");
        Session other = elsewhere.createSession(false, Session.AUTO_ACKNOWLEDGE);
        print("of another client", () -> unsubscribe(other, "shared"));
        one.close();
        print("not shared", () -> kind(session.createDurableConsumer(topic, "shared")));
        print("unsubscribe shared", () -> unsubscribe(session, "shared"));

        MessageConsumer fleeting = session.createSharedConsumer(topic, "fleeting");
        MessageConsumer apart = other.createSharedConsumer(topic, "fleeting");
        publish("e");
        print("shared", () -> receive(fleeting) + " " + receive(apart));
        fleeting.close();
        publish("f");
        print("shared anew", () -> receive(session.createSharedConsumer(topic, "fleeting")));

        Connection anybody = connection(null);
        Session first = anybody.createSession(false, Session.AUTO_ACKNOWLEDGE);
        first.createSharedDurableConsumer(topic, "global").close();
        publish("g");
        Connection somebody = connection(null);
        Session last = somebody.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer global = last.createSharedDurableConsumer(topic, "global");
        print("global", () -> receive(global));
        print("unsubscribe global while active", () -> unsubscribe(first, "global"));
        MessageConsumer here = first.createSharedConsumer(topic, "all");
        MessageConsumer there = last.createSharedConsumer(topic, "all");
        print("global, each gets some", () -> shares(here, there));
        global.close();
        print("unsubscribe global", () -> unsubscribe(first, "global"));

        for (Connection each : new Connection[] {publisher, till, elsewhere, anybody, somebody}) {
            each.close();
        }
    }

    private static Connection connection(String clientId) throws JMSException {
        Connection connection = factory.createConnection();
        if (clientId != null) {
            connection.setClientID(clientId);
        }
        connection.start();
        return connection;
    }

    private static void publish(String text) throws JMSException {
        producer.send(publishing.createTextMessage(text));
    }

    private static void publish(String text, int number) throws JMSException {
        TextMessage message = publishing.createTextMessage(text);
        message.setIntProperty("n", number);
        producer.send(message);
    }

    private static String receive(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(SILENCE_MS);
        return message == null ? "nothing" : ((TextMessage) message).getText();
    }

    private static String shares(MessageConsumer one, MessageConsumer two) throws JMSException {
        for (int number = 0; number < 8; number++) {
            publish(Integer.toString(number));
        }
        int ones = count(one);
        int twos = count(two);
        return ones + twos + " " + (ones > 0 && twos > 0);
    }

    private static int count(MessageConsumer consumer) throws JMSException {
        int count = 0;
        while (!receive(consumer).equals("nothing")) {
            count++;
        }
        return count;
    }

    private static String unsubscribe(Session session, String name) throws JMSException {
        session.unsubscribe(name);
        return "gone";
    }

    private static String kind(MessageConsumer consumer) {
        return "begun";
    }

    private static void print(String name, Step step) {
        String result;
        try {
            result = step.run();
        } catch (JMSException problem) {
            result = problem.getClass().getSimpleName();
        }
        System.out.println(name + ": " + result);
    }
}
