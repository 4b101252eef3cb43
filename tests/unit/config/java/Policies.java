import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.apache.activemq.RedeliveryPolicy;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.command.ActiveMQQueue;

/**
 * What ActiveMQ's own classes say, a line for a line: "entry" with patterns and a name gives the pattern of the entry that
 * holds; "delays" with what a RedeliveryPolicy is told gives its first delays.
 */
public class Policies {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("entry") ? entry(words) : delays(words));
        }
    }

    private static String entry(String[] words) {
        List<PolicyEntry> entries = new ArrayList<>();
        for (int n = 2; n < words.length; n++) {
            PolicyEntry entry = new PolicyEntry();
            entry.setQueue(words[n]);
            entries.add(entry);
        }
        PolicyMap map = new PolicyMap();
        map.setPolicyEntries(entries);
        PolicyEntry found = map.getEntryFor(new ActiveMQQueue(words[1]));
        return found == null ? "-" : found.getDestination().getPhysicalName();
    }

    private static String delays(String[] words) {
        RedeliveryPolicy policy = new RedeliveryPolicy();
        policy.setInitialRedeliveryDelay(Long.parseLong(words[1]));
        policy.setRedeliveryDelay(Long.parseLong(words[2]));
        policy.setUseExponentialBackOff(Boolean.parseBoolean(words[3]));
        policy.setBackOffMultiplier(Double.parseDouble(words[4]));
        policy.setMaximumRedeliveryDelay(Long.parseLong(words[5]));
        StringBuilder said = new StringBuilder();
        long delay = policy.getInitialRedeliveryDelay();
        for (int n = 0; n < 8; n++) {
            said.append(n == 0 ? "" : " ").append(delay);
            delay = policy.getNextRedeliveryDelay(delay);
        }
        return said.toString();
    }
}
