import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.security.Principal;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.activemq.broker.BrokerPlugin;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.broker.util.TimeStampingBrokerPlugin;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.jaas.GroupPrincipal;
import org.apache.activemq.filter.DestinationMapEntry;
import org.apache.activemq.security.AuthorizationEntry;
import org.apache.activemq.security.AuthorizationPlugin;
import org.apache.activemq.security.DefaultAuthorizationMap;
import org.apache.activemq.security.SimpleAuthenticationPlugin;
import org.apache.activemq.security.TempDestinationAuthorizationEntry;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.util.IntrospectionSupport;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Runs a real ActiveMQ as the file in the first argument describes it (see BrokerService). Prints "yes" when the broker
 * runs, "no" and a reason if it cannot. "stop" on standard input stops it cleanly; the end of standard input ends it at
 * once.
 */
public final class OutsideActiveMQ {
    public static void main(String[] arguments) throws Exception {
        BrokerService broker = null;
        try {
            broker = broker(new ObjectMapper().readTree(new File(arguments[0])));
            broker.start();
            broker.waitUntilStarted();
            System.out.println("yes");
        } catch (Exception error) {
            System.out.println("no " + String.valueOf(error).replaceAll("\\s+", " "));
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        if ("stop".equals(new BufferedReader(new InputStreamReader(System.in)).readLine())) {
            broker.stop();
            broker.waitUntilStopped();
        }
        Runtime.getRuntime().halt(0);
    }

    private static BrokerService broker(JsonNode facts) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setBrokerName(facts.get("name").asText());
        broker.setUseJmx(false);
        broker.setUseShutdownHook(false);
        File directory = new File(facts.get("directory").asText());
        broker.setDataDirectoryFile(directory);
        broker.setPersistent(facts.get("persistent").asBoolean());
        if (broker.isPersistent()) {
            KahaDBPersistenceAdapter adapter = new KahaDBPersistenceAdapter();
            adapter.setDirectory(new File(directory, "kahadb"));
            adapter.setEnableJournalDiskSyncs(false);
            broker.setPersistenceAdapter(adapter);
        }
        broker.setDeleteAllMessagesOnStartup(facts.get("deletes").asBoolean());
        broker.setAdvisorySupport(facts.get("advisories").asBoolean());
        broker.setSchedulerSupport(facts.get("scheduler").asBoolean());
        broker.setMaxSchedulerRepeatAllowed(facts.get("repeats").asInt());
        broker.setPopulateJMSXUserID(facts.get("userIds").asBoolean());
        long store = facts.path("store").asLong();
        broker.getSystemUsage().getStoreUsage().setLimit(store > 0 ? store : 1L << 31);
        broker.getSystemUsage().setSendFailIfNoSpace(facts.path("failsWithoutSpace").asBoolean());
        broker.getSystemUsage().setSendFailIfNoSpaceAfterTimeout(facts.path("failsWithoutSpaceAfter").asLong());
        broker.getSystemUsage().getTempUsage().setLimit(1L << 28);
        broker.getSystemUsage().getJobSchedulerUsage().setLimit(1L << 28);
        if (facts.has("memory")) {
            broker.getSystemUsage().getMemoryUsage().setLimit(facts.get("memory").asLong());
        }
        for (JsonNode uri : facts.get("connectors")) {
            broker.addConnector(uri.asText());
        }
        List<ActiveMQDestination> destinations = new ArrayList<>();
        facts.get("destinations").forEach(name -> destinations.add(destination(name)));
        broker.setDestinations(destinations.toArray(new ActiveMQDestination[0]));
        PolicyMap policies = new PolicyMap();
        List<PolicyEntry> entries = new ArrayList<>();
        for (JsonNode said : facts.get("policies")) {
            PolicyEntry entry = (PolicyEntry) bean(said, new PolicyEntry());
            if (said.has("destination")) {
                entry.setDestination(destination(said.get("destination")));
                entries.add(entry);
            } else {
                policies.setDefaultEntry(entry);
            }
        }
        policies.setPolicyEntries(entries);
        broker.setDestinationPolicy(policies);
        broker.setPlugins(plugins(facts).toArray(new BrokerPlugin[0]));
        return broker;
    }

    private static List<BrokerPlugin> plugins(JsonNode facts) {
        List<BrokerPlugin> plugins = new ArrayList<>();
        if (facts.has("users")) {
            SimpleAuthenticationPlugin users = new SimpleAuthenticationPlugin(new ArrayList<>());
            Map<String, String> passwords = new HashMap<>();
            Map<String, Set<Principal>> groups = new HashMap<>();
            for (JsonNode user : facts.get("users")) {
                passwords.put(user.get("name").asText(), user.get("password").asText());
                Set<Principal> in = new LinkedHashSet<>();
                user.get("groups").forEach(group -> in.add(new GroupPrincipal(group.asText())));
                groups.put(user.get("name").asText(), in);
            }
            users.setUserPasswords(passwords);
            users.setUserGroups(groups);
            if (facts.has("anonymous")) {
                users.setAnonymousAccessAllowed(true);
                users.setAnonymousUser(facts.get("anonymous").get("user").asText());
                users.setAnonymousGroup(facts.get("anonymous").get("group").asText());
            }
            plugins.add(users);
        }
        if (facts.has("rights")) {
            List<DestinationMapEntry> entries = new ArrayList<>();
            for (JsonNode said : facts.get("rights")) {
                AuthorizationEntry entry = rights(said, new AuthorizationEntry());
                entry.setDestination(destination(said.get("destination")));
                entries.add(entry);
            }
            DefaultAuthorizationMap map = new DefaultAuthorizationMap(entries);
            if (facts.has("temporaryRights")) {
                map.setTempDestinationAuthorizationEntry(
                    (TempDestinationAuthorizationEntry) rights(facts.get("temporaryRights"), new TempDestinationAuthorizationEntry()));
            }
            plugins.add(new AuthorizationPlugin(map));
        }
        if (facts.has("timeStamping")) {
            TimeStampingBrokerPlugin stamps = new TimeStampingBrokerPlugin();
            stamps.setZeroExpirationOverride(facts.get("timeStamping").get("zeroExpirationOverride").asLong());
            stamps.setTtlCeiling(facts.get("timeStamping").get("ttlCeiling").asLong());
            stamps.setFutureOnly(facts.get("timeStamping").get("futureOnly").asBoolean());
            plugins.add(stamps);
        }
        return plugins;
    }

    private static AuthorizationEntry rights(JsonNode said, AuthorizationEntry entry) {
        entry.setReadACLs(acls(said.get("read")));
        entry.setWriteACLs(acls(said.get("write")));
        entry.setAdminACLs(acls(said.get("admin")));
        return entry;
    }

    private static Set<Object> acls(JsonNode groups) {
        Set<Object> found = new LinkedHashSet<>();
        groups.forEach(group -> found.add(new GroupPrincipal(group.asText())));
        return found.isEmpty() ? Collections.emptySet() : found;
    }

    private static ActiveMQDestination destination(JsonNode name) {
        return ActiveMQDestination.createDestination(name.asText(), ActiveMQDestination.QUEUE_TYPE);
    }

    private static Object bean(JsonNode said, Object bean) throws Exception {
        for (java.util.Iterator<Map.Entry<String, JsonNode>> each = said.fields(); each.hasNext();) {
            Map.Entry<String, JsonNode> field = each.next();
            JsonNode value = field.getValue();
            if (field.getKey().equals("class") || field.getKey().equals("destination")) {
                continue;
            }
            Object meant = value.isObject() ? bean(value, Class.forName(value.get("class").asText()).getDeclaredConstructor().newInstance())
                : value.asText();
            if (!IntrospectionSupport.setProperty(bean, field.getKey(), meant)) {
                throw new IllegalArgumentException("no property " + field.getKey() + " of " + bean.getClass());
            }
        }
        return bean;
    }
}
