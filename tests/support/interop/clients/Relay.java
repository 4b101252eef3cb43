import java.io.IOException;
import java.lang.reflect.Type;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.URI;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.messaging.converter.StringMessageConverter;
import org.springframework.messaging.simp.config.MessageBrokerRegistry;
import org.springframework.messaging.simp.stomp.StompFrameHandler;
import org.springframework.messaging.simp.stomp.StompHeaders;
import org.springframework.messaging.simp.stomp.StompReactorNettyCodec;
import org.springframework.messaging.simp.stomp.StompSession;
import org.springframework.messaging.simp.stomp.StompSessionHandlerAdapter;
import org.springframework.messaging.tcp.reactor.ReactorNettyTcpClient;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.web.socket.client.standard.StandardWebSocketClient;
import org.springframework.web.socket.config.annotation.EnableWebSocketMessageBroker;
import org.springframework.web.socket.config.annotation.StompEndpointRegistry;
import org.springframework.web.socket.config.annotation.WebSocketMessageBrokerConfigurer;
import org.springframework.web.socket.messaging.WebSocketStompClient;

/** Spring's STOMP relay over a pair of brokers, and a STOMP client of Spring that goes through it. */
@SpringBootConfiguration
@EnableAutoConfiguration
@EnableWebSocketMessageBroker
public class Relay implements WebSocketMessageBrokerConfigurer {
    private static final long PAUSE_MS = 100;
    private static final String PRODUCER = "relay-" + Math.random(); // a name that is never used again

    private static List<InetSocketAddress> addresses;

    @Override
    public void registerStompEndpoints(StompEndpointRegistry registry) {
        registry.addEndpoint("/stomp");
    }

    @Override
    public void configureMessageBroker(MessageBrokerRegistry registry) {
        registry.enableStompBrokerRelay("/queue/").setTcpClient(new ReactorNettyTcpClient<>(
            client -> client.remoteAddress(Relay::firstThatAccepts), new StompReactorNettyCodec()));
    }

    private static SocketAddress firstThatAccepts() {
        for (InetSocketAddress address : addresses) {
            try (Socket socket = new Socket()) {
                socket.connect(address, 1_000);
                return address;
            } catch (IOException refused) {
                // it stands by, or is down
            }
        }
        return addresses.get(0);
    }

    public static void main(String[] arguments) throws Exception {
        addresses = Arrays.stream(arguments[0].split(",")).map(URI::create)
            .map(uri -> new InetSocketAddress(uri.getHost(), uri.getPort())).toList();
        SpringApplication application = new SpringApplication(Relay.class);
        application.setDefaultProperties(
            Map.of("server.port", "0", "spring.main.banner-mode", "off", "logging.level.root", "error"));
        var context = (ServletWebServerApplicationContext) application.run();
        String url = "ws://127.0.0.1:" + context.getWebServer().getPort() + "/stomp";

        ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
        scheduler.initialize();
        WebSocketStompClient client = new WebSocketStompClient(new StandardWebSocketClient());
        client.setMessageConverter(new StringMessageConverter());
        client.setTaskScheduler(scheduler); // for receipts
        client.setReceiptTimeLimit(2_000);
        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException problem) {
                write("{\"note\": \"%s\"}", problem);
            }
        });
        input.start();
        StompSession session = null;
        for (int number = 1; input.isAlive(); number++) {
            write("{\"sent\": %d}", number);
            while (!isStored(session, arguments[1], number)) {
                session = connected(client, url, arguments[1]);
            }
            write("{\"confirmed\": %d}", number);
        }
        write("{\"done\": true}");
    }

    /** False: what became of it is not known. */
    private static boolean isStored(StompSession session, String queue, int number) throws Exception {
        if (session == null || !session.isConnected()) {
            return false;
        }
        StompHeaders headers = new StompHeaders();
        headers.setDestination(queue);
        headers.setReceipt("receipt-" + number);
        headers.set("persistent", "true");
        headers.set("tandemmq-send-id", PRODUCER + ":" + number);
        CompletableFuture<Boolean> stored = new CompletableFuture<>();
        try {
            StompSession.Receiptable receipt = session.send(headers, Integer.toString(number));
            receipt.addReceiptTask(() -> stored.complete(true));
            receipt.addReceiptLostTask(() -> stored.complete(false));
        } catch (RuntimeException closed) {
            return false;
        }
        return stored.get(1, TimeUnit.MINUTES);
    }

    private static StompSession connected(WebSocketStompClient client, String url, String queue) throws Exception {
        while (true) {
            try {
                StompSession session = client.connectAsync(url, new StompSessionHandlerAdapter() {}).get();
                StompHeaders headers = new StompHeaders();
                headers.setDestination(queue);
                headers.setAck("client-individual");
                session.subscribe(headers, new StompFrameHandler() {
                    @Override
                    public Type getPayloadType(StompHeaders headers) {
                        return String.class;
                    }

                    @Override
                    public void handleFrame(StompHeaders headers, Object text) {
                        String id = headers.getMessageId() + " " + headers.getFirst("timestamp");
                        write("{\"received\": %s, \"id\": \"%s\"}", text, id);
                        StompHeaders ack = new StompHeaders();
                        ack.setId(headers.getAck());
                        session.acknowledge(ack, true);
                    }
                });
                return session;
            } catch (java.util.concurrent.ExecutionException refused) {
                Thread.sleep(PAUSE_MS); // the relay has no broker
            }
        }
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
