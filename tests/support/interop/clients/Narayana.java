import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

import javax.sql.XAConnection;
import javax.transaction.xa.XAResource;

import com.arjuna.ats.arjuna.common.CoreEnvironmentBeanException;
import com.arjuna.ats.arjuna.common.arjPropertyManager;
import com.arjuna.ats.arjuna.recovery.RecoveryManager;
import com.arjuna.ats.internal.jta.recovery.arjunacore.XARecoveryModule;
import com.arjuna.ats.jta.common.jtaPropertyManager;
import com.arjuna.ats.jta.recovery.XAResourceRecoveryHelper;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.transaction.TransactionManager;

import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQXAConnectionFactory;
import org.h2.jdbcx.JdbcDataSource;
import org.messaginghub.pooled.jms.JmsPoolXAConnectionFactory;

/**
 * Narayana over a pair of brokers: each transaction takes a message and writes a row of H2 (XA, two phases); the
 * recovery manager finishes what a kill interrupted. The rows are what was received: two rows are one too many.
 */
public final class Narayana {
    private static final long PAUSE_MS = 5;
    private static final long WAIT_MS = 1_000;

    static final TransactionManager MANAGER = com.arjuna.ats.jta.TransactionManager.transactionManager();

    static String url;
    private static JdbcDataSource database;

    public static void main(String[] arguments) throws Exception {
        setUp(arguments[0]);
        begin(() -> consume(arguments[1]));
        send(arguments[1]);
    }

    /** The database, its books, and the recovery manager. */
    static void setUp(String addresses) throws Exception {
        url = "failover:(" + addresses + ")?maxReconnectDelay=100";
        database = new JdbcDataSource();
        database.setURL("jdbc:h2:mem:books;DB_CLOSE_DELAY=-1");
        try (Connection connection = database.getConnection()) {
            connection.createStatement().execute("create table books (place identity primary key, number int)");
        }
        recover();
        begin(Narayana::tell);
    }

    static void send(String queue) throws Exception {
        Thread input = begin(() -> System.in.readAllBytes());
        jakarta.jms.Connection connection = new ActiveMQConnectionFactory(url).createConnection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        for (int number = 1; input.isAlive(); number++) {
            write("{\"sent\": %d}", number);
            producer.send(session.createTextMessage(Integer.toString(number))); // returns when it is stored
            write("{\"confirmed\": %d}", number);
            Thread.sleep(PAUSE_MS);
        }
        write("{\"done\": true}");
    }

    private static void recover() throws CoreEnvironmentBeanException {
        com.arjuna.ats.arjuna.common.recoveryPropertyManager.getRecoveryEnvironmentBean().setRecoveryBackoffPeriod(1);
        com.arjuna.ats.arjuna.common.recoveryPropertyManager.getRecoveryEnvironmentBean().setPeriodicRecoveryPeriod(2);
        arjPropertyManager.getCoreEnvironmentBean().setNodeIdentifier("1");
        jtaPropertyManager.getJTAEnvironmentBean().setXaRecoveryNodes(java.util.List.of("1"));
        RecoveryManager manager = RecoveryManager.manager(RecoveryManager.DIRECT_MANAGEMENT);
        manager.initialize();
        for (Object module : manager.getModules()) {
            if (module instanceof XARecoveryModule) {
                ((XARecoveryModule) module).addXAResourceRecoveryHelper(helper());
            }
        }
        begin(() -> {
            while (true) {
                Thread.sleep(2 * WAIT_MS);
                manager.scan();
            }
        });
    }

    /** Resources of connections of their own, for what a broken connection left prepared. */
    private static XAResourceRecoveryHelper helper() {
        return new XAResourceRecoveryHelper() {
            private XAResource[] resources;

            @Override
            public boolean initialise(String text) {
                return true;
            }

            @Override
            public synchronized XAResource[] getXAResources() throws Exception {
                if (resources == null) {
                    jakarta.jms.XAConnection broker = new ActiveMQXAConnectionFactory(url).createXAConnection();
                    resources = new XAResource[] {
                        broker.createXASession().getXAResource(), database.getXAConnection().getXAResource()
                    };
                }
                return resources;
            }
        };
    }

    private static void consume(String queue) throws Exception {
        JmsPoolXAConnectionFactory pool = new JmsPoolXAConnectionFactory();
        pool.setTransactionManager(MANAGER); // a session is part of the transaction in which it is created
        pool.setConnectionFactory(new ActiveMQXAConnectionFactory(url));
        Rows rows = new Rows();
        while (true) {
            try {
                MANAGER.begin();
                try (jakarta.jms.Connection connection = pool.createConnection()) {
                    connection.start();
                    Session session = connection.createSession();
                    TextMessage message = (TextMessage) session.createConsumer(session.createQueue(queue)).receive(WAIT_MS);
                    if (message != null) {
                        rows.add(message);
                    }
                }
                MANAGER.commit();
            } catch (Exception problem) {
                note(problem);
                rows = new Rows();
                if (MANAGER.getTransaction() != null) {
                    MANAGER.rollback();
                }
            }
        }
    }

    private static void enlist(XAResource resource) throws Exception {
        if (!MANAGER.getTransaction().enlistResource(resource)) {
            throw new IllegalStateException("not enlisted: " + resource);
        }
    }

    /** A connection of H2: its handle stays open, since closing it ends the branch. */
    static final class Rows {
        private final XAConnection connection;
        private final PreparedStatement insert;

        Rows() throws SQLException {
            connection = database.getXAConnection();
            insert = connection.getConnection().prepareStatement("insert into books (number) values (?)");
        }

        /** A row for the message, in the present transaction. */
        void add(TextMessage message) throws Exception {
            enlist(connection.getXAResource());
            insert.setInt(1, Integer.parseInt(message.getText()));
            insert.execute();
        }
    }

    static void note(Exception problem) {
        write("{\"note\": \"%s\"}", problem.toString().replaceAll("[\"\\\\\\s]+", " "));
    }

    /** Writes each row once, when it is committed. */
    private static void tell() throws Exception {
        try (Connection connection = database.getConnection();
                PreparedStatement select = connection.prepareStatement("select place, number from books order by place")) {
            java.util.Set<Long> told = new java.util.HashSet<>();
            while (true) {
                try (ResultSet rows = select.executeQuery()) {
                    while (rows.next()) {
                        if (told.add(rows.getLong(1))) {
                            write("{\"received\": %d}", rows.getInt(2));
                        }
                    }
                }
                Thread.sleep(100);
            }
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    static Thread begin(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception problem) {
                problem.printStackTrace();
                System.exit(1);
            }
        });
        thread.start();
        return thread;
    }

    private static synchronized void write(String line, Object... values) {
        System.out.println(String.format(line, values));
    }
}
