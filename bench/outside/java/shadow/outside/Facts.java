package outside;

import java.beans.Introspector;
import java.beans.PropertyDescriptor;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;

import org.apache.activemq.broker.BrokerPlugin;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.broker.util.TimeStampingBrokerPlugin;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTempQueue;
import org.apache.activemq.command.ActiveMQTempTopic;
import org.apache.activemq.command.ActiveMQTopic;
import org.apache.activemq.filter.DestinationMap;
import org.apache.activemq.security.AuthorizationEntry;
import org.apache.activemq.security.AuthorizationPlugin;
import org.apache.activemq.security.DefaultAuthorizationMap;
import org.apache.activemq.security.SimpleAuthenticationPlugin;

/** The configuration of a test as plain maps and lists: policies, users, rights. */
public final class Facts {
    private Facts() {
    }

    public static List<Object> of(PolicyMap policies) throws Exception {
        List<Object> entries = new ArrayList<>();
        if (policies == null) {
            return entries;
        }
        for (Object entry : values(policies)) {
            if (((PolicyEntry) entry).getDestination() == null) {
                continue; // the one that holds for all else
            }
            Map<String, Object> facts = bean(entry, new PolicyEntry());
            facts.put("destination", ((PolicyEntry) entry).getDestination().getQualifiedName());
            entries.add(facts);
        }
        if (policies.getDefaultEntry() != null) {
            entries.add(bean(policies.getDefaultEntry(), new PolicyEntry()));
        }
        return entries;
    }

    /** Adds the configuration of a plug-in. */
    public static void of(BrokerPlugin plugin, Map<String, Object> facts) throws Exception {
        if (plugin.getClass() == SimpleAuthenticationPlugin.class) {
            SimpleAuthenticationPlugin said = (SimpleAuthenticationPlugin) plugin;
            List<Object> users = new ArrayList<>();
            said.getUserPasswords().forEach((name, password) -> users.add(Map.of("name", name, "password", password,
                "groups", names(said.getUserGroups().getOrDefault(name, Collections.emptySet())))));
            facts.put("users", users);
            if (said.isAnonymousAccessAllowed()) {
                facts.put("anonymous", Map.of("user", said.getAnonymousUser(), "group", said.getAnonymousGroup()));
            }
        } else if (plugin.getClass() == AuthorizationPlugin.class
                && ((AuthorizationPlugin) plugin).getMap().getClass() == DefaultAuthorizationMap.class) {
            DefaultAuthorizationMap map = (DefaultAuthorizationMap) ((AuthorizationPlugin) plugin).getMap();
            List<Object> rights = new ArrayList<>();
            for (Object value : values(map)) {
                rights.add(rights((AuthorizationEntry) value));
            }
            facts.put("rights", rights);
            if (map.getTempDestinationAuthorizationEntry() != null) {
                facts.put("temporaryRights", rights(map.getTempDestinationAuthorizationEntry()));
            }
        } else if (plugin.getClass() == TimeStampingBrokerPlugin.class) {
            Map<String, Object> said = new LinkedHashMap<>();
            for (String name : List.of("zeroExpirationOverride", "ttlCeiling", "futureOnly")) {
                Field field = TimeStampingBrokerPlugin.class.getDeclaredField(name);
                field.setAccessible(true);
                said.put(name, field.get(plugin));
            }
            facts.put("timeStamping", said);
        } else {
            throw new DoesNotApply("a plug-in of the broker: " + plugin.getClass().getName());
        }
    }

    private static Map<String, Object> rights(AuthorizationEntry entry) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("destination", entry.getDestination() == null ? "" : entry.getDestination().getQualifiedName());
        facts.put("read", names(entry.getReadACLs()));
        facts.put("write", names(entry.getWriteACLs()));
        facts.put("admin", names(entry.getAdminACLs()));
        return facts;
    }

    private static List<String> names(Collection<?> principals) {
        return principals == null ? List.of() : principals.stream()
            .map(each -> ((java.security.Principal) each).getName()).sorted().collect(Collectors.toList());
    }

    private static Set<Object> values(DestinationMap map) {
        Set<Object> found = Collections.newSetFromMap(new IdentityHashMap<>());
        for (ActiveMQDestination all : List.of(new ActiveMQQueue(">"), new ActiveMQTopic(">"),
                new ActiveMQTempQueue(">"), new ActiveMQTempTopic(">"))) {
            found.addAll(map.get(all));
        }
        return found;
    }

    /** Returns the properties of a bean that differ from their defaults: plain values, and beans of ActiveMQ. */
    private static Map<String, Object> bean(Object bean, Object fresh) throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        for (PropertyDescriptor property : Introspector.getBeanInfo(bean.getClass()).getPropertyDescriptors()) {
            if (property.getReadMethod() == null || property.getName().equals("class")
                    || property.getWriteMethod() == null || ActiveMQDestination.class.isAssignableFrom(property.getPropertyType())) {
                continue;
            }
            Object value = property.getReadMethod().invoke(bean);
            Object usual = property.getReadMethod().invoke(fresh);
            if (value == null || value.equals(usual)) {
                continue;
            }
            if (value instanceof Number || value instanceof Boolean || value instanceof String) {
                facts.put(property.getName(), value);
            } else if (value instanceof ActiveMQDestination) {
                facts.put(property.getName(), ((ActiveMQDestination) value).getQualifiedName());
            } else if (value.getClass().getName().startsWith("org.apache.activemq.broker.region.")
                    && value.getClass().getProtectionDomain().equals(PolicyEntry.class.getProtectionDomain())
                    && !value.getClass().isAnonymousClass()) {
                Map<String, Object> inner = bean(value, value.getClass().getDeclaredConstructor().newInstance());
                boolean isUsual = usual != null && usual.getClass() == value.getClass() && inner.isEmpty();
                if (!isUsual) {
                    inner.put("class", value.getClass().getName());
                    facts.put(property.getName(), inner);
                }
            } else {
                throw new DoesNotApply("a policy with a class of its own: " + property.getName());
            }
        }
        return facts;
    }
}
