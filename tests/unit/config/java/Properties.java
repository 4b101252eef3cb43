import java.beans.Introspector;
import java.beans.PropertyDescriptor;

/** Prints what can be set on ActiveMQ's classes of a store, and the default: class, property, value, by tabs. */
public class Properties {
    public static void main(String[] names) throws Exception {
        for (String name : names) {
            Class<?> type = Class.forName(name);
            Object bean = type.getDeclaredConstructor().newInstance();
            for (PropertyDescriptor property : Introspector.getBeanInfo(type).getPropertyDescriptors()) {
                if (property.getWriteMethod() == null) {
                    continue;
                }
                String value = "?";
                if (property.getReadMethod() != null) {
                    try {
                        value = String.valueOf(property.getReadMethod().invoke(bean));
                    } catch (ReflectiveOperationException unreadable) {
                        value = "?";
                    }
                }
                System.out.println(type.getSimpleName() + "\t" + property.getName() + "\t" + value);
            }
        }
    }
}
