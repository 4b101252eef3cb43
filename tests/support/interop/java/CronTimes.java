import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.TimeZone;
import org.apache.activemq.broker.scheduler.CronParser;

/** Reads lines "time zone TAB milliseconds TAB cron entry"; prints what CronParser says is the next time, or its refusal. */
public class CronTimes {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t");
            TimeZone.setDefault(TimeZone.getTimeZone(parts[0]));
            try {
                System.out.println(CronParser.getNextScheduledTime(parts[2], Long.parseLong(parts[1])));
            } catch (Exception e) {
                System.out.println(e.getClass().getSimpleName());
            }
        }
    }
}
