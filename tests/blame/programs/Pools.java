import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongFunction;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Pools of memory that known functions touch first, in Java: arrays, lists and maps of small objects, by several
 * threads.
 *
 * <p>When all are built, one line of JSON says them; from then on {@code serveRequests} touches the hot ones every 50
 * ms; the idle ones stay untouched. Pools are built one after the other.
 *
 * <p>Names: the functions are called on little until C2 has compiled them (so -Xbatch), for an interpreted frame has no
 * name in a map. The map, /tmp/perf-PID.map, is written then and after each pool, by the operation of jcmd's
 * Compiler.perfmap. It takes the place of what was there. The program fails if a function is missing in it.
 *
 * <p>{@code bytes} is what the thread has allocated meanwhile (ThreadMXBean), all of which stays: lists and maps
 * begin at the size that they end with. It is resident by this function for as long as nothing is collected: objects
 * that a collector moves are touched first by it. So the young generation is larger than all pools, unless --recycle.
 *
 * <p>{@code touched} is measured: minor faults of the thread that builds, a page each. Resident memory would also tell
 * what collectors touch and return meanwhile. With --recycle it is an upper bound: objects that a collector has
 * moved since lie in memory that the collector touched first.
 *
 * <p>--recycle: the heap begins small and is collected as it grows. {@code churnOpen} first allocates as many bytes
 * as all pools have and drops them; System.gc() makes the heap shrink. {@code churnSteadily} goes on to replace small
 * blocks, 0.4 MB of garbage a second.
 */
public final class Pools {
    private static final int PAGE = 4096;
    /** Shares of the pools are of this. */
    private static final long WHOLE = 256;
    private static final int WARMING_CALLS = 3000;
    private static final long WARMING_BYTES = 2048;

    private static long sink;

    private interface Touch {
        void touch();
    }

    /** Arrays of at most 8 MiB, filled at once. */
    static Touch indexBuild(long bytes) {
        int words = (int) (Math.min(bytes / 4, 8 << 20) / 8);
        long[][] index = new long[(int) (bytes / 8 / words)][];
        for (int at = 0; at < index.length; at++) {
            index[at] = new long[words];
            Arrays.fill(index[at], at);
        }
        return () -> sink += index.length;
    }

    private record Session(long user, long expires, long[] token) {}

    static final class SessionCache {
        private final Map<Long, Session> sessions;
        private final int count;

        SessionCache(long bytes) {
            // A node (32), its key (24), the session (32), its token (80), and a place in the table (4 to 8).
            count = (int) (bytes / 174);
            sessions = new HashMap<>(count * 4 / 3 + 1);
        }

        /** A hash map of small objects. */
        void fill() {
            for (long user = 0; user < count; user++) {
                sessions.put(user + 1000, new Session(user, 7, new long[] {user, 1, 2, 3, 4, 5, 6, 7}));
            }
        }
    }

    static Touch openSessions(long bytes) {
        SessionCache cache = new SessionCache(bytes);
        cache.fill();
        return () -> sink += cache.sessions.size();
    }

    /** Rows of their own. */
    static Touch imageDecode(long bytes) {
        int row = (int) Math.min(bytes / 4, 64 << 10);
        byte[][] image = new byte[(int) (bytes / row)][];
        for (int at = 0; at < image.length; at++) {
            image[at] = new byte[row];
            for (int column = 0; column < row; column++) {
                image[at][column] = (byte) (column * at >> 3 | 1);
            }
        }
        return () -> touchPages(image);
    }

    /** Arrays of at most 4 MiB, of which nothing but zeroes is stored to: the allocation does. */
    static Touch logRingOpen(long bytes) {
        int segment = (int) Math.min(bytes / 4, 4 << 20);
        byte[][] ring = new byte[(int) (bytes / segment)][];
        for (int at = 0; at < ring.length; at++) {
            ring[at] = new byte[segment];
        }
        return () -> touchPages(ring);
    }

    private record Metric(long number, double value, double mean) {}

    /** A list of small objects. */
    static Touch metricsTableLoad(long bytes) {
        int count = (int) (bytes / 44);
        List<Metric> table = new ArrayList<>(count);
        for (int at = 0; at < count; at++) {
            table.add(new Metric(at, at * 0.5, at * 0.25));
        }
        return () -> sink += table.size();
    }

    private static final class Node {
        Node left;
        Node right;
        final long[] state = new long[10];

        long sum() {
            return state[0] + (left == null ? 0 : left.sum()) + (right == null ? 0 : right.sum());
        }
    }

    /** A binary tree, built by recursion. */
    static Node undoTreeGrow(int depth) {
        Node node = new Node();
        node.state[0] = depth;
        if (depth > 1) {
            node.left = undoTreeGrow(depth - 1);
            node.right = undoTreeGrow(depth - 1);
        }
        return node;
    }

    static Touch growTrees(long bytes) {
        int depth = bytes > WARMING_BYTES ? 9 : 4;
        Node[] trees = new Node[(int) (bytes / (((1 << depth) - 1) * 120L)) + 1];
        for (int at = 0; at < trees.length; at++) {
            trees[at] = undoTreeGrow(depth);
        }
        return () -> {
            for (Node tree : trees) {
                sink += tree.sum();
            }
        };
    }

    private static void touchPages(byte[][] arrays) {
        for (byte[] array : arrays) {
            for (int at = 0; at < array.length; at += PAGE) {
                array[at]++;
            }
        }
    }

    private static final List<byte[]> kept = Collections.synchronizedList(new ArrayList<>());

    /** Half of the bytes in large blocks; of the rest as many in each power of two. Keeps one block of 1024. */
    static void churnOpen(long bytes) {
        Random random = new Random(3);
        List<byte[]> blocks = new ArrayList<>();
        for (long opened = 0; opened < bytes; ) {
            int bits = opened < bytes / 2 ? 20 : 4;
            while (bits < 15 && random.nextBoolean()) {
                bits++;
            }
            byte[] block = new byte[(1 << bits) + random.nextInt(1 << bits)];
            Arrays.fill(block, (byte) 0x11);
            blocks.add(block);
            opened += block.length;
        }
        Collections.shuffle(blocks, random);
        for (int at = 1023; at < blocks.size(); at += 1024) {
            kept.add(blocks.get(at));
        }
    }

    static void churnSteadily() {
        Random random = new Random(7);
        byte[][] held = new byte[2048][];
        while (true) {
            for (int turn = 0; turn < 8; turn++) {
                held[random.nextInt(held.length)] = new byte[16 + random.nextInt(1024)];
            }
            sleep(10);
        }
    }

    private record Pool(String function, LongFunction<Touch> build, long share, boolean isIdle, String thread) {}

    private static final List<Pool> POOLS =
            List.of(
                    new Pool("Pools.indexBuild", Pools::indexBuild, 96, true, "main"),
                    new Pool("Pools.SessionCache.fill", Pools::openSessions, 40, true, "session-filler"),
                    new Pool("Pools.imageDecode", Pools::imageDecode, 24, false, "decoder"),
                    new Pool("Pools.logRingOpen", Pools::logRingOpen, 56, false, "log-writer"),
                    new Pool("Pools.metricsTableLoad", Pools::metricsTableLoad, 32, true, "main"),
                    new Pool("Pools.undoTreeGrow", Pools::growTrees, 8, false, "main"));

    /** The pools, by function. */
    private static final Map<String, Touch> built = new ConcurrentHashMap<>();

    /** The contents of a pool. */
    private record Measured(long bytes, long touched) {}

    /** Faults of this thread. */
    private static long faults() {
        try {
            String line = Files.readString(Path.of("/proc/thread-self/stat"));
            return Long.parseLong(line.substring(line.lastIndexOf(')') + 2).split(" ")[7]);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static Measured build(Pool pool, long bytes) {
        var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        threads.getCurrentThreadAllocatedBytes();
        long faultsBefore = faults();
        long before = threads.getCurrentThreadAllocatedBytes();
        Touch touch = pool.build.apply(bytes);
        long allocated = threads.getCurrentThreadAllocatedBytes() - before;
        long touched = (faults() - faultsBefore) * PAGE;
        built.put(pool.function, touch);
        return new Measured(allocated, touched);
    }

    private static Measured buildOnThread(Pool pool, long bytes) throws InterruptedException {
        if (pool.thread.equals("main")) {
            return build(pool, bytes);
        }
        Measured[] results = new Measured[1];
        Object lock = new Object();
        Thread thread =
                new Thread(
                        () -> {
                            Measured own = build(pool, bytes);
                            synchronized (lock) {
                                results[0] = own;
                                lock.notifyAll();
                            }
                            sleep(Long.MAX_VALUE);
                        },
                        pool.thread);
        thread.setDaemon(true);
        thread.start();
        synchronized (lock) {
            while (results[0] == null) {
                lock.wait();
            }
        }
        return results[0];
    }

    /** Until its function is compiled. */
    private static void warm(Pool pool) {
        for (int call = 0; call < WARMING_CALLS; call++) {
            sink += pool.build.apply(WARMING_BYTES).hashCode() & 1;
        }
    }

    private static void writeMap() throws JMException {
        ManagementFactory.getPlatformMBeanServer()
                .invoke(
                        new ObjectName("com.sun.management:type=DiagnosticCommand"),
                        "compilerPerfmap",
                        new Object[0],
                        new String[0]);
    }

    private static void checkMap() throws IOException {
        Path path = Path.of("/tmp/perf-" + ProcessHandle.current().pid() + ".map");
        String map = Files.readString(path).replace('$', '.');
        for (Pool pool : POOLS) {
            if (!map.contains(" " + pool.function + "(")) {
                System.err.println(pool.function + " is not compiled: it is missing in " + path);
                Runtime.getRuntime().halt(1);
            }
        }
    }

    private static void serveRequests(double seconds) {
        for (int turns = (int) (seconds / 0.05); turns > 0; turns--) {
            for (Pool pool : POOLS) {
                if (!pool.isIdle) {
                    built.get(pool.function).touch();
                }
            }
            sleep(50);
        }
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    public static void main(String[] arguments) throws IOException, InterruptedException, JMException {
        long mib = 256;
        double seconds = 60;
        boolean isRecycled = false;
        for (int at = 0; at < arguments.length; at++) {
            switch (arguments[at]) {
                case "--recycle" -> isRecycled = true;
                case "--mib" -> mib = Long.parseLong(arguments[++at]);
                case "--seconds" -> seconds = Double.parseDouble(arguments[++at]);
                default -> {
                    System.err.println("usage: Pools [--mib N] [--seconds S] [--recycle]");
                    System.exit(2);
                }
            }
        }
        // Loads JMX first: a class that is loaded later may take back what was compiled.
        writeMap();
        POOLS.forEach(Pools::warm);
        if (isRecycled) {
            churnOpen(mib << 20);
            System.gc();
        }
        writeMap();
        List<String> lines = new ArrayList<>();
        for (Pool pool : POOLS) {
            Measured of = buildOnThread(pool, (pool.share * mib << 20) / WHOLE);
            writeMap();
            lines.add(
                    "{\"function\":\"%s\",\"bytes\":%d,\"touched\":%d,\"idle\":%b,\"thread\":\"%s\"}"
                            .formatted(pool.function, of.bytes, of.touched, pool.isIdle, pool.thread));
        }
        checkMap();
        if (isRecycled) {
            Thread churn = new Thread(Pools::churnSteadily, "churn");
            churn.setDaemon(true);
            churn.start();
        }
        System.out.println("{\"language\":\"java\",\"pools\":[" + String.join(",", lines) + "]}");
        System.out.flush();
        serveRequests(seconds);
    }
}
