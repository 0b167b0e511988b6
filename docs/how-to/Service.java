import java.util.*;

/** Builds an index of large arrays and a cache of small objects, then idles. For docs/how-to/blame.md. */
public class Service {
    static long[][] index;
    static Map<Integer, String> cache = new HashMap<>(2_000_000);

    static void buildIndex() {
        index = new long[24][];
        for (int i = 0; i < index.length; i++) {
            index[i] = new long[1 << 19];
            Arrays.fill(index[i], i);
        }
    }

    static void fillCache() {
        for (int i = 0; i < 1_000_000; i++) {
            cache.put(i, "entry " + i);
        }
    }

    public static void main(String[] args) throws Exception {
        buildIndex();
        fillCache();
        System.out.println("built");
        Thread.sleep(100_000);
    }
}
