import jakarta.jms.TextMessage;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.command.ActiveMQMessage;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.jms.JmsComponent;
import org.apache.camel.component.jms.JmsMessage;
import org.apache.camel.impl.DefaultCamelContext;
import org.messaginghub.pooled.jms.JmsPoolConnectionFactory;

/** Camel over a pair of brokers: a transacted route, a ProducerTemplate, and the pool of pooled-jms. */
public final class Camel {
    private static final long PAUSE_MS = 1;

    public static void main(String[] arguments) throws Exception {
        JmsPoolConnectionFactory pool = new JmsPoolConnectionFactory();
        pool.setConnectionFactory(new ActiveMQConnectionFactory("failover:(" + arguments[0] + ")?maxReconnectDelay=100"));
        DefaultCamelContext context = new DefaultCamelContext();
        context.addComponent("activemq", JmsComponent.jmsComponentAutoAcknowledge(pool));
        String queue = "activemq:queue:" + arguments[1];
        context.addRoutes(new RouteBuilder() {
            @Override
            public void configure() {
                from(queue + "?transacted=true&lazyCreateTransactionManager=false").process(exchange -> {
                    TextMessage message = (TextMessage) exchange.getIn(JmsMessage.class).getJmsMessage();
                    long taken = ((ActiveMQMessage) message).getBrokerInTime();
                    write("{\"received\": %s, \"id\": \"%s %d\"}", message.getText(), message.getJMSMessageID(), taken);
                });
            }
        });
        context.start();

        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException problem) {
                write("{\"note\": \"%s\"}", problem);
            }
        });
        input.start();
        ProducerTemplate template = context.createProducerTemplate();
        for (int number = 1; input.isAlive(); number++) {
            write("{\"sent\": %d}", number);
            template.sendBody(queue, Integer.toString(number)); // returns when it is stored
            write("{\"confirmed\": %d}", number);
            Thread.sleep(PAUSE_MS);
        }
        write("{\"done\": true}");
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
