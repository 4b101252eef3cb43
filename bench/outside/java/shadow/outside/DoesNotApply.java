package outside;

import org.junit.AssumptionViolatedException;

/** A test requires what only a broker in its own process has, or a setting that does not exist here. */
public final class DoesNotApply extends AssumptionViolatedException {
    private static final long serialVersionUID = 1L;

    /** The last one of this test, because some tests catch and ignore it. */
    public static volatile String met;

    public DoesNotApply(String why) {
        super(why);
        met = why;
    }
}
