import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import javax.jms.InvalidSelectorException;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQMessage;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTopic;
import org.apache.activemq.filter.BooleanExpression;
import org.apache.activemq.filter.DestinationFilter;
import org.apache.activemq.filter.MessageEvaluationContext;
import org.apache.activemq.selector.SelectorParser;

/**
 * What ActiveMQ says of selectors, wildcards and composite names: one JSON request a line, one JSON answer a line.
 *
 * {"properties": {"n": ["int", 5]}, "priority": 4, "persistent": true}: the message from here on; answers "ok"
 * {"selector": "n = 5"}: "true", "false", "invalid" (refused), "fails" (an exception when it sees the message)
 * {"pattern": "A.>", "names": ["A", "B"]}: the names that match
 * {"split": "A,topic://B", "type": 1 (queue) or 2 (topic)}: [[type, name], ...], [] when it is refused
 */
public class Selectors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final MessageEvaluationContext CONTEXT = new MessageEvaluationContext();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
        out.flush();
    }

    private static Object answer(JsonNode request) throws Exception {
        if (request.has("properties")) {
            CONTEXT.setMessageReference(message(request));
            return "ok";
        }
        if (request.has("selector")) {
            return select(request.get("selector").asText());
        }
        if (request.has("pattern")) {
            return matching(request.get("pattern").asText(), request.get("names"));
        }
        return parts(request.get("split").asText(), (byte) request.get("type").asInt());
    }

    private static ActiveMQMessage message(JsonNode request) throws Exception {
        ActiveMQMessage message = new ActiveMQMessage();
        message.setDestination(new ActiveMQQueue("Q"));
        message.setPriority((byte) request.get("priority").asInt());
        message.setPersistent(request.get("persistent").asBoolean());
        Iterator<Map.Entry<String, JsonNode>> entries = request.get("properties").fields();
        while (entries.hasNext()) {
            Map.Entry<String, JsonNode> entry = entries.next();
            message.setObjectProperty(entry.getKey(), value(entry.getValue()));
        }
        return message;
    }

    private static Object value(JsonNode typed) {
        JsonNode value = typed.get(1);
        switch (typed.get(0).asText()) {
            case "boolean": return value.asBoolean();
            case "byte": return (byte) value.asInt();
            case "short": return (short) value.asInt();
            case "int": return value.asInt();
            case "long": return value.asLong();
            case "float": return (float) value.asDouble();
            case "double": return value.asDouble();
            default: return value.asText();
        }
    }

    private static String select(String selector) {
        BooleanExpression expression;
        // its cache mixes up what was parsed with convert_string_expressions: and what was parsed without
        SelectorParser.clearCache();
        try {
            expression = SelectorParser.parse(selector);
        } catch (InvalidSelectorException e) {
            return "invalid";
        }
        try {
            return String.valueOf(expression.matches(CONTEXT));
        } catch (Exception e) {
            return "fails";
        }
    }

    private static List<String> matching(String pattern, JsonNode names) {
        DestinationFilter filter = DestinationFilter.parseFilter(new ActiveMQQueue(pattern));
        List<String> found = new ArrayList<>();
        for (JsonNode name : names) {
            if (filter.matches(new ActiveMQQueue(name.asText()))) {
                found.add(name.asText());
            }
        }
        return found;
    }

    private static List<Object> parts(String name, byte type) {
        ActiveMQDestination destination;
        try {
            destination = type == ActiveMQDestination.TOPIC_TYPE ? new ActiveMQTopic(name) : new ActiveMQQueue(name);
        } catch (IllegalArgumentException e) {
            return List.of();
        }
        List<Object> found = new ArrayList<>();
        if (!destination.isComposite()) {
            found.add(List.of(destination.getDestinationType(), destination.getPhysicalName()));
            return found;
        }
        for (ActiveMQDestination each : destination.getCompositeDestinations()) {
            found.add(List.of(each.getDestinationType(), each.getPhysicalName()));
        }
        return found;
    }
}
