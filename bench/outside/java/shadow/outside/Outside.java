package outside;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;

import com.fasterxml.jackson.databind.ObjectMapper;

/** A broker of another process. It is requested at the port of the property `outside.port`, and killed when this connection ends. */
public final class Outside {
    private static final int START_MS_MAX = 30_000;
    private static final int STOP_MS_MAX = 10_000;

    private final Socket line;

    private Outside(Socket line) {
        this.line = line;
    }

    public static File directory() {
        return new File(System.getProperty("outside.directory"));
    }

    public static Outside start(Map<String, Object> facts, int port) throws Exception {
        Socket line = new Socket("127.0.0.1", Integer.getInteger("outside.port"));
        line.setSoTimeout(START_MS_MAX);
        OutputStream out = line.getOutputStream();
        out.write((new ObjectMapper().writeValueAsString(facts) + "\n").getBytes(StandardCharsets.UTF_8));
        out.flush();
        String answer = new BufferedReader(new InputStreamReader(line.getInputStream(), StandardCharsets.UTF_8)).readLine();
        if (answer == null || !answer.equals("yes")) {
            line.close();
            throw new DoesNotApply("the broker says: " + answer);
        }
        await(port);
        return new Outside(line);
    }

    private static void await(int port) throws Exception {
        long deadline = System.currentTimeMillis() + START_MS_MAX;
        while (true) {
            try (Socket probe = new Socket()) {
                probe.connect(new InetSocketAddress("127.0.0.1", port), 1000);
                return;
            } catch (IOException error) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IOException("the broker outside does not listen", error);
                }
                Thread.sleep(20);
            }
        }
    }

    /** Stops the broker cleanly, so that its store is complete, or at once. */
    public void stop(boolean inOrder) throws IOException {
        if (inOrder) {
            line.getOutputStream().write("stop\n".getBytes(StandardCharsets.UTF_8));
            line.setSoTimeout(STOP_MS_MAX);
        } else {
            line.shutdownOutput();
        }
        try {
            while (line.getInputStream().read() >= 0) {
                continue;
            }
        } catch (IOException late) {
            // The end of the connection kills the broker.
        }
        line.close();
    }
}
