import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.activemq.store.SharedFileLocker;

/** ActiveMQ's own SharedFileLocker, driven by one word a line: try, keep, release. */
public class ActiveMQLock {
    public static void main(String[] arguments) throws Exception {
        SharedFileLocker locker = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            if (line.equals("try")) {
                locker = new SharedFileLocker();
                locker.setDirectory(new File(arguments[0]));
                locker.setFailIfLocked(true);
                try {
                    locker.start();
                    answer = "True";
                } catch (Exception refused) {
                    answer = "False";
                }
            } else if (line.equals("keep")) {
                answer = locker.keepAlive() ? "True" : "False";
            } else {
                locker.stop();
                answer = "None";
            }
            System.out.println(answer);
        }
    }
}
