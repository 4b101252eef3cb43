import java.io.Serializable;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import javax.jms.BytesMessage;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageEOFException;
import javax.jms.ObjectMessage;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TextMessage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQMessage;
import org.apache.activemq.command.DataStructure;

/**
 * JMS messages from JSON and back. A value is a JSON string, boolean, int or double, or says what it is:
 * {"long": 1}, {"short": 1}, {"byte": 1}, {"float": 1.5}, {"char": "x"}, {"bytes": "base64"}.
 */
final class Messages {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Messages() {
    }

    static Message made(Session session, String kind, JsonNode body) throws JMSException {
        switch (kind) {
            case "text": return session.createTextMessage(body.isNull() ? null : body.asText());
            case "bytes":
                BytesMessage bytes = session.createBytesMessage();
                bytes.writeBytes(Base64.getDecoder().decode(body.asText()));
                return bytes;
            case "map":
                MapMessage map = session.createMapMessage();
                for (Iterator<Map.Entry<String, JsonNode>> all = body.fields(); all.hasNext();) {
                    Map.Entry<String, JsonNode> entry = all.next();
                    map.setObject(entry.getKey(), value(entry.getValue()));
                }
                return map;
            case "stream":
                StreamMessage stream = session.createStreamMessage();
                for (JsonNode element : body) {
                    stream.writeObject(value(element));
                }
                return stream;
            case "object": return session.createObjectMessage((Serializable) value(body));
            case "message": return session.createMessage();
            default: throw new IllegalArgumentException(kind);
        }
    }

    static void dress(Message message, JsonNode request) throws JMSException {
        for (Iterator<Map.Entry<String, JsonNode>> all = request.path("properties").fields(); all.hasNext();) {
            Map.Entry<String, JsonNode> entry = all.next();
            message.setObjectProperty(entry.getKey(), value(entry.getValue()));
        }
        if (request.hasNonNull("correlation")) {
            message.setJMSCorrelationID(request.get("correlation").asText());
        }
        if (request.hasNonNull("type")) {
            message.setJMSType(request.get("type").asText());
        }
    }

    private static Object value(JsonNode node) {
        if (node.isTextual()) {
            return node.asText();
        }
        if (node.isBoolean()) {
            return node.asBoolean();
        }
        if (node.isInt()) {
            return node.asInt();
        }
        if (node.isDouble()) {
            return node.asDouble();
        }
        if (node.isNull()) {
            return null;
        }
        if (node.isArray()) {
            List<Object> list = new ArrayList<>();
            node.forEach(element -> list.add(value(element)));
            return list;
        }
        Map.Entry<String, JsonNode> said = node.fields().next();
        JsonNode inner = said.getValue();
        switch (said.getKey()) {
            case "long": return inner.asLong();
            case "short": return (short) inner.asInt();
            case "byte": return (byte) inner.asInt();
            case "float": return (float) inner.asDouble();
            case "char": return inner.asText().charAt(0);
            case "bytes": return Base64.getDecoder().decode(inner.asText());
            default: throw new IllegalArgumentException(node.toString());
        }
    }

    static ObjectNode told(Message message, String name) throws JMSException {
        ActiveMQMessage own = (ActiveMQMessage) message;
        ObjectNode told = JSON.createObjectNode();
        told.put("name", name);
        told.put("id", message.getJMSMessageID());
        told.put("redelivered", message.getJMSRedelivered());
        told.put("deliveries", own.getRedeliveryCounter() + 1);
        told.put("priority", message.getJMSPriority());
        told.put("persistent", own.isPersistent());
        told.put("expiration", message.getJMSExpiration());
        told.put("timestamp", message.getJMSTimestamp());
        told.put("correlation", message.getJMSCorrelationID());
        told.put("type", message.getJMSType());
        told.put("destination", own.getDestination().getQualifiedName());
        told.put("compressed", own.isCompressed());
        told.put("group", own.getGroupID());
        told.put("groupSequence", own.getGroupSequence());
        told.put("isFirstOfGroup", own.isJMSXGroupFirstForConsumer());
        told.put("userId", own.getUserID());
        if (own.getOriginalDestination() != null) {
            told.put("originalDestination", own.getOriginalDestination().getQualifiedName());
        }
        if (message.getJMSReplyTo() != null) {
            told.put("replyTo", ((ActiveMQDestination) message.getJMSReplyTo()).getQualifiedName());
        }
        ObjectNode properties = told.putObject("properties");
        for (Object key : Collections.list(message.getPropertyNames())) {
            properties.set((String) key, typed(message.getObjectProperty((String) key)));
        }
        DataStructure about = own.getDataStructure();
        if (about != null) {
            told.put("about", about.getClass().getSimpleName());
            told.put("aboutText", about.toString());
        }
        body(message, told);
        return told;
    }

    private static void body(Message message, ObjectNode told) throws JMSException {
        if (message instanceof TextMessage) {
            told.put("kind", "text").put("body", ((TextMessage) message).getText());
        } else if (message instanceof BytesMessage) {
            byte[] bytes = new byte[(int) ((BytesMessage) message).getBodyLength()];
            ((BytesMessage) message).readBytes(bytes);
            told.put("kind", "bytes").put("body", Base64.getEncoder().encodeToString(bytes));
        } else if (message instanceof MapMessage) {
            ObjectNode map = told.put("kind", "map").putObject("body");
            for (Object key : Collections.list(((MapMessage) message).getMapNames())) {
                map.set((String) key, typed(((MapMessage) message).getObject((String) key)));
            }
        } else if (message instanceof StreamMessage) {
            ArrayNode stream = told.put("kind", "stream").putArray("body");
            try {
                while (true) {
                    stream.add(typed(((StreamMessage) message).readObject()));
                }
            } catch (MessageEOFException end) {
                ((StreamMessage) message).reset();
            }
        } else if (message instanceof ObjectMessage) {
            told.put("kind", "object").set("body", typed(((ObjectMessage) message).getObject()));
        } else {
            told.put("kind", "message");
        }
    }

    /** As the requests write it: what JSON cannot tell apart says what it is. */
    private static JsonNode typed(Object value) {
        if (value instanceof Long) {
            return JSON.createObjectNode().put("long", (Long) value);
        }
        if (value instanceof Short) {
            return JSON.createObjectNode().put("short", (Short) value);
        }
        if (value instanceof Byte) {
            return JSON.createObjectNode().put("byte", (Byte) value);
        }
        if (value instanceof Float) {
            return JSON.createObjectNode().put("float", (Float) value);
        }
        if (value instanceof Character) {
            return JSON.createObjectNode().put("char", value.toString());
        }
        if (value instanceof byte[]) {
            return JSON.createObjectNode().put("bytes", Base64.getEncoder().encodeToString((byte[]) value));
        }
        return JSON.valueToTree(value);
    }
}
