import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.activemq.openwire.OpenWireFormat;
import org.apache.activemq.util.ByteSequence;

/**
 * Reads and writes again what stands on its standard input, a line each:
 * version, tight, cached, traces (1 or 0), a whole frame in hexadecimal digits. Prints the frame, or "!" and the reason.
 */
public final class Wire {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder out = new StringBuilder();
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            try {
                Object command = format(words).unmarshal(new ByteSequence(bytes(words[4])));
                ByteSequence again = format(words).marshal(command);
                for (int i = 0; i < again.length; i++) {
                    out.append(String.format("%02x", again.data[again.offset + i]));
                }
            } catch (Throwable failure) {
                out.append("! ").append(failure.toString().replace('\n', ' '));
            }
            out.append('\n');
        }
        System.out.print(out);
    }

    private static OpenWireFormat format(String[] words) {
        OpenWireFormat format = new OpenWireFormat(Integer.parseInt(words[0]));
        format.setTightEncodingEnabled(words[1].equals("1"));
        format.setCacheEnabled(words[2].equals("1"));
        format.setStackTraceEnabled(words[3].equals("1"));
        return format;
    }

    private static byte[] bytes(String digits) {
        byte[] found = new byte[digits.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }
}
