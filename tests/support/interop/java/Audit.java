import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.activemq.ActiveMQMessageAuditNoSync;
import org.apache.activemq.util.BitArray;
import org.apache.activemq.util.BitArrayBin;

/**
 * The producer audit that KahaDB keeps in its journal, by its own classes. One JSON request a line, one answer a line.
 *
 *   {"do": "write audit", "depth", "producers", "ids"}    an audit that saw those message ids -> {"bytes", "last"}
 *   {"do": "read audit", "bytes"}                         -> {"depth", "producers", "windows", "last"}
 */
public final class Audit {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static Map<String, Object> answer(JsonNode request) throws Exception {
        switch (request.get("do").asText()) {
            case "write audit": {
                ActiveMQMessageAuditNoSync audit = new ActiveMQMessageAuditNoSync(
                    request.get("depth").asInt(), request.get("producers").asInt());
                for (JsonNode id : request.get("ids")) {
                    audit.isDuplicate(id.asText());
                }
                return Map.of("bytes", written(audit));
            }
            case "read audit": {
                ActiveMQMessageAuditNoSync audit = (ActiveMQMessageAuditNoSync) read(request);
                List<Object> windows = new ArrayList<>();
                for (Map.Entry<?, ?> entry : ((Map<?, ?>) field(audit, "map")).entrySet()) {
                    BitArrayBin bin = (BitArrayBin) entry.getValue();
                    List<Object> arrays = new ArrayList<>();
                    for (Object array : (List<?>) field(bin, "list")) {
                        BitArray bits = (BitArray) array;
                        arrays.add(bits == null ? null : Arrays.asList(bits.length(), Long.toHexString(bits.getBits())));
                    }
                    windows.add(Arrays.asList(
                        entry.getKey(), field(bin, "longFirstIndex"), arrays, bin.getLastSetIndex()));
                }
                return Map.of(
                    "depth", audit.getAuditDepth(),
                    "producers", audit.getMaximumNumberOfProducersToTrack(),
                    "windows", windows);
            }
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private static String written(Object object) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        ObjectOutputStream out = new ObjectOutputStream(bytes);
        out.writeObject(object);
        out.close();
        return HexFormat.of().formatHex(bytes.toByteArray());
    }

    private static Object read(JsonNode request) throws Exception {
        byte[] bytes = HexFormat.of().parseHex(request.get("bytes").asText());
        ByteArrayInputStream in = new ByteArrayInputStream(bytes);
        Object object = new ObjectInputStream(in).readObject();
        if (in.available() > 0) {
            throw new IllegalStateException(in.available() + " bytes follow the object");
        }
        return object;
    }

    private static Object field(Object object, String name) throws Exception {
        Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }
}
