import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.logging.Logger;
import javax.sql.DataSource;
import org.apache.activemq.broker.LockableServiceSupport;
import org.apache.activemq.broker.Locker;
import org.apache.activemq.store.jdbc.AbstractJDBCLocker;
import org.apache.activemq.store.jdbc.DefaultDatabaseLocker;
import org.apache.activemq.store.jdbc.LeaseDatabaseLocker;
import org.apache.activemq.store.jdbc.Statements;
import org.apache.activemq.util.ServiceStopper;

/** ActiveMQ's own database lockers, driven by one word a line: ready, start (returns at once), has, keep, release. */
public class ActiveMQDatabaseLock {
    static final long LEASE_MILLIS = 2000;

    public static void main(String[] arguments) throws Exception {
        AbstractJDBCLocker locker = locker(arguments[0], new Driver(arguments[1], arguments[2], arguments[3]));
        Thread starting = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer = "None";
            if (line.equals("ready")) {
                locker.toString();
            } else if (line.equals("start")) {
                starting = new Thread(() -> {
                    try {
                        locker.start();
                    } catch (Exception stopped) {
                        // it is asked whether it has the lock
                    }
                });
                starting.setDaemon(true);
                starting.start();
            } else if (line.equals("has")) {
                answer = starting.isAlive() ? "False" : "True";
            } else if (line.equals("keep")) {
                answer = locker.keepAlive() ? "True" : "False";
            } else {
                locker.stop();
            }
            System.out.println(answer);
        }
    }

    static AbstractJDBCLocker locker(String kind, DataSource source) throws Exception {
        AbstractJDBCLocker locker;
        if (kind.equals("lease-database")) {
            LeaseDatabaseLocker lease = new LeaseDatabaseLocker();
            lease.setLeaseHolderId("activemq");
            lease.setLockAcquireSleepInterval(LEASE_MILLIS);
            locker = lease;
        } else {
            DefaultDatabaseLocker whole = new DefaultDatabaseLocker();
            whole.setLockAcquireSleepInterval(100);
            locker = whole;
        }
        locker.setDataSource(source);
        locker.setStatements(new Statements());
        locker.setCreateTablesOnStartup(true);
        locker.setLockable(new Store());
        locker.setName("activemq");
        return locker;
    }

    static class Store extends LockableServiceSupport {
        @Override public void init() {}
        @Override public Locker createDefaultLocker() { return null; }
        @Override protected void doStart() {}
        @Override protected void doStop(ServiceStopper stopper) {}
    }

    static class Driver implements DataSource {
        private final String url;
        private final String user;
        private final String password;

        Driver(String url, String user, String password) {
            this.url = url;
            this.user = user;
            this.password = password;
        }

        @Override public Connection getConnection() throws java.sql.SQLException {
            return DriverManager.getConnection(url, user, password);
        }

        @Override public Connection getConnection(String user, String password) { throw new UnsupportedOperationException(); }
        @Override public PrintWriter getLogWriter() { return null; }
        @Override public void setLogWriter(PrintWriter out) {}
        @Override public void setLoginTimeout(int seconds) {}
        @Override public int getLoginTimeout() { return 0; }
        @Override public Logger getParentLogger() { return Logger.getGlobal(); }
        @Override public <T> T unwrap(Class<T> type) { throw new UnsupportedOperationException(); }
        @Override public boolean isWrapperFor(Class<?> type) { return false; }
    }
}
