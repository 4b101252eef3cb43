import java.util.Map;

import jakarta.jms.JMSException;
import jakarta.jms.TextMessage;

import org.apache.activemq.command.ActiveMQMessage;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.jms.annotation.JmsListener;
import org.springframework.jms.core.JmsTemplate;

/** Spring Boot over a pair of brokers: JmsTemplate, a transacted JmsListener, and the pool of pooled-jms. */
@SpringBootConfiguration // SpringBootApplication, less the scan, which wants a package
@EnableAutoConfiguration
public class Spring {
    private static final long PAUSE_MS = 1;

    public static void main(String[] arguments) {
        SpringApplication application = new SpringApplication(Spring.class);
        application.setDefaultProperties(Map.of(
            "spring.activemq.broker-url", "failover:(" + arguments[0] + ")?maxReconnectDelay=100",
            "spring.activemq.pool.enabled", "true",
            "spring.jms.listener.session.transacted", "true",
            "spring.main.banner-mode", "off",
            "logging.level.root", "warn",
            "queue", arguments[1]));
        application.run();
    }

    @JmsListener(destination = "${queue}")
    public void receive(TextMessage message) throws JMSException {
        long taken = ((ActiveMQMessage) message).getBrokerInTime();
        write("{\"received\": %s, \"id\": \"%s %d\"}", message.getText(), message.getJMSMessageID(), taken);
    }

    @Bean
    CommandLineRunner sender(JmsTemplate template, @org.springframework.beans.factory.annotation.Value("${queue}") String queue) {
        return arguments -> {
            Thread input = new Thread(() -> {
                try {
                    System.in.readAllBytes();
                } catch (java.io.IOException problem) {
                    write("{\"note\": \"%s\"}", problem);
                }
            });
            input.start();
            for (int number = 1; input.isAlive(); number++) {
                write("{\"sent\": %d}", number);
                template.convertAndSend(queue, Integer.toString(number)); // returns when it is stored
                write("{\"confirmed\": %d}", number);
                Thread.sleep(PAUSE_MS);
            }
            write("{\"done\": true}");
        };
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
