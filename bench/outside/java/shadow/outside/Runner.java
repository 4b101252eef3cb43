package outside;

import java.io.PrintStream;
import java.util.HashSet;
import java.util.Set;
import java.util.regex.Pattern;

import org.junit.AssumptionViolatedException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the tests of one class whose names match the second argument. Prints a line when a test begins, and one when it ends: state, name, reason. */
public final class Runner extends RunListener {
    private final PrintStream out;
    private final Set<String> done = new HashSet<>();

    private Runner(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        JUnitCore core = new JUnitCore();
        core.addListener(new Runner(out));
        Pattern wanted = Pattern.compile(arguments[1]);
        core.run(Request.aClass(Class.forName(arguments[0])).filterWith(new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                return test.isSuite() ? test.getChildren().stream().anyMatch(this::shouldRun) : wanted.matcher(name(test)).find();
            }

            @Override
            public String describe() {
                return arguments[1];
            }
        }));
        out.println("#end");
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    @Override
    public void testStarted(Description test) {
        DoesNotApply.met = null;
        say("start", test, "");
    }

    @Override
    public void testFailure(Failure failure) {
        if (done.add(name(failure.getDescription()))) {
            String why = notApplicable(failure.getException());
            say(why != null ? "n/a" : "failed", failure.getDescription(), why != null ? why : text(failure));
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        if (done.add(name(failure.getDescription()))) {
            say("n/a", failure.getDescription(), String.valueOf(failure.getMessage()));
        }
    }

    @Override
    public void testIgnored(Description test) {
        say("ignored", test, "");
    }

    @Override
    public void testFinished(Description test) {
        if (done.add(name(test))) {
            say(DoesNotApply.met != null ? "n/a" : "passed", test, DoesNotApply.met != null ? DoesNotApply.met : "");
        }
    }

    /** Returns why a test does not apply: DoesNotApply was thrown (the test may have ignored it), or the test called a method that does not exist here. */
    private static String notApplicable(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof AssumptionViolatedException) {
                return String.valueOf(cause.getMessage());
            }
            String text = String.valueOf(cause);
            if (text.contains("couldn't be set on the BrokerService") || text.contains("vm.VMTransport")
                    || text.startsWith("org.springframework.beans.")) {
                return text;
            }
            if (cause instanceof NoSuchMethodError || cause instanceof NoSuchFieldError
                    || cause instanceof NoClassDefFoundError || cause instanceof ClassNotFoundException) {
                return cause.toString();
            }
        }
        return DoesNotApply.met;
    }

    private static String text(Failure failure) {
        StringBuilder text = new StringBuilder(String.valueOf(failure.getException()));
        for (StackTraceElement at : failure.getException().getStackTrace()) {
            String name = at.getClassName();
            if (!name.startsWith("org.junit.") && !name.startsWith("junit.") && !name.startsWith("java.")
                    && !name.startsWith("jdk.") && at.getFileName() != null && at.getFileName().contains("Test")) {
                text.append(" at ").append(at.getFileName()).append(':').append(at.getLineNumber());
                break;
            }
        }
        return text.toString();
    }

    private static String name(Description test) {
        return test.getMethodName() == null ? test.getDisplayName() : test.getMethodName();
    }

    private void say(String state, Description test, String why) {
        out.println(state + "\t" + name(test).replaceAll("\\s+", " ") + "\t" + why.replaceAll("\\s+", " "));
        out.flush();
    }
}
