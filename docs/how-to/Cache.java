import java.util.Random;

/** A cache of 300 MiB, of which requests read a tenth; each request leaves some garbage. For docs/how-to/jvm.md. */
public class Cache {
    static Object last;

    public static void main(String[] args) throws Exception {
        byte[][] entries = new byte[75_000][];
        for (int i = 0; i < entries.length; i++) {
            entries[i] = new byte[4096];
        }
        Random random = new Random(1);
        for (long sum = 0;; Thread.sleep(1)) {
            for (int i = 0; i < 200; i++) {
                byte[] entry = entries[random.nextInt(entries.length / 10)];
                sum += entry[i];
                last = new byte[512];
            }
        }
    }
}
