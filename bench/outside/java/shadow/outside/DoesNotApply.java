package outside;

import org.junit.AssumptionViolatedException;

/** A test asks for what only a broker of its own process has, or for what no setting here says. */
public final class DoesNotApply extends AssumptionViolatedException {
    private static final long serialVersionUID = 1L;

    /** The last one of this test: some tests swallow what they meet. */
    public static volatile String met;

    public DoesNotApply(String why) {
        super(why);
        met = why;
    }
}
