import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.HdrHistogram.Histogram;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;
import site.ycsb.WorkloadException;
import site.ycsb.generator.NumberGenerator;
import site.ycsb.generator.ZipfianGenerator;
import site.ycsb.measurements.Measurements;
import site.ycsb.workloads.CoreWorkload;

/**
 * Workload C of the Yahoo! Cloud Serving Benchmark (reads only), by YCSB's own core from Maven, against a redis or a
 * memcached on a Unix socket, or a map in this very heap. YCSB's bindings are not published by Maven.
 *
 * <pre>
 *   Ycsb load redis|memcached SOCKET RECORDS
 *   Ycsb read redis|memcached SOCKET RECORDS DISTRIBUTION SECONDS [RATE]
 *   Ycsb both heap -          RECORDS DISTRIBUTION SECONDS [RATE]
 * </pre>
 *
 * DISTRIBUTION is YCSB's zipfian, latest or uniform, or zipf. In a recordset of any size, YCSB's zipfian draws from ten
 * thousand million ranks and hashes them to the records: 44 % of the reads are spread evenly, and no record is cold.
 * zipf draws from as many ranks as there are records, with the same exponent of 0.99.
 *
 * Two threads, each with a connection. Records have ten fields of 100 bytes, each of 50 random bytes, twice, so that
 * they compress to about a half. RATE is how many reads start in a second; without it, the next starts when one ends.
 * Prints how many reads a second there would be without pauses, and the 99th percentile of their time from their start.
 */
public final class Ycsb {
    private static final int THREADS = 2;

    public static void main(String[] args) throws Exception {
        if (args.length < 4 || (!args[0].equals("load") && args.length < 6)) {
            System.err.println("load STORE SOCKET RECORDS, or read|both STORE SOCKET RECORDS DISTRIBUTION SECONDS");
            System.exit(2);
        }
        Properties properties = new Properties();
        properties.setProperty("recordcount", args[3]);
        properties.setProperty("operationcount", "1");
        properties.setProperty("readproportion", "1");
        properties.setProperty("updateproportion", "0");
        properties.setProperty("insertproportion", "0");
        properties.setProperty("requestdistribution", args[0].equals("load") || args[4].equals("zipf") ? "uniform" : args[4]);
        Measurements.setProperties(properties);
        CoreWorkload workload = args.length > 4 && args[4].equals("zipf") ? new OfRecords() : new CoreWorkload();
        workload.init(properties);
        if (!args[0].equals("read")) {
            load(workload, properties, Store.open(args[1], args[2]), Integer.parseInt(args[3]));
        }
        if (!args[0].equals("load")) {
            long pause = args.length > 6 ? THREADS * 1_000_000_000L / Long.parseLong(args[6]) : 0;
            read(workload, properties, args[1], args[2], Long.parseLong(args[5]), pause);
        }
    }

    private static void load(CoreWorkload workload, Properties properties, Store store, int records) throws Exception {
        Object state = workload.initThread(properties, 0, 1);
        for (int record = 0; record < records; record++) {
            if (!workload.doInsert(store, state)) {
                throw new IOException("record " + record + " was not stored");
            }
        }
    }

    private static void read(CoreWorkload workload, Properties properties, String kind, String socket, long seconds,
            long pause) throws Exception {
        Histogram latency = new Histogram(3);
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        long begun = System.nanoTime();
        for (int number = 0; number < THREADS; number++) {
            int id = number;
            threads.add(new Thread(() -> {
                Histogram own = new Histogram(3);
                try {
                    Store store = Store.open(kind, socket);
                    Object state = workload.initThread(properties, id, THREADS);
                    long due = begun;
                    for (long now = begun; now - begun < seconds * 1_000_000_000L;) {
                        while (now < due) {
                            LockSupport.parkNanos(due - now);
                            now = System.nanoTime();
                        }
                        due += pause;
                        workload.doTransaction(store, state);
                        long ended = System.nanoTime();
                        own.recordValue(ended - now);
                        now = ended;
                    }
                    // One that is gone would be read faster than one that is there.
                    if (store.missing > 0) {
                        throw new IOException(store.missing + " records are gone");
                    }
                } catch (Throwable failure) {
                    failures.add(failure);
                }
                synchronized (latency) {
                    latency.add(own);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        if (!failures.isEmpty()) {
            throw new Exception(failures.get(0));
        }
        System.out.printf(Locale.ROOT, "throughput: %.1f%np99: %.1f us%n", THREADS * 1e9 / latency.getMean(),
                latency.getValueAtPercentile(99) / 1e3);
    }

    /** Zipf's law over the records, the popular ones anywhere among the others. */
    private static final class OfRecords extends CoreWorkload {
        @Override
        public void init(Properties properties) throws WorkloadException {
            super.init(properties);
            long records = Long.parseLong(properties.getProperty("recordcount"));
            ZipfianGenerator rank = new ZipfianGenerator(records);
            keychooser = new NumberGenerator() {
                @Override
                public Number nextValue() {
                    return rank.nextValue() * 7919 % records;
                }

                @Override
                public double mean() {
                    throw new UnsupportedOperationException();
                }
            };
        }
    }

    /** A store of records: what YCSB calls a database. */
    private abstract static class Store extends DB {
        long missing;

        static Store open(String kind, String socket) throws IOException {
            switch (kind) {
                case "redis": return new Redis(socket);
                case "memcached": return new Memcached(socket);
                case "heap": return new Heap();
                default: throw new IllegalArgumentException("no store is named " + kind);
            }
        }

        abstract boolean put(String key, Map<String, byte[]> fields) throws IOException;

        abstract boolean get(String key) throws IOException;

        @Override
        public Status insert(String table, String key, Map<String, ByteIterator> values) {
            Map<String, byte[]> fields = new HashMap<>();
            values.forEach((name, value) -> {
                byte[] field = value.toArray();
                int half = field.length / 2;
                System.arraycopy(field, 0, field, half, half);
                fields.put(name, field);
            });
            try {
                return put(key, fields) ? Status.OK : Status.ERROR;
            } catch (IOException failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
            try {
                if (!get(key)) {
                    missing++;
                    return Status.NOT_FOUND;
                }
                return Status.OK;
            } catch (IOException failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public Status scan(String table, String key, int count, Set<String> fields,
                Vector<HashMap<String, ByteIterator>> result) {
            return Status.NOT_IMPLEMENTED;
        }

        @Override
        public Status update(String table, String key, Map<String, ByteIterator> values) {
            return Status.NOT_IMPLEMENTED;
        }

        @Override
        public Status delete(String table, String key) {
            return Status.NOT_IMPLEMENTED;
        }
    }

    private static final class Heap extends Store {
        private static final Map<String, Map<String, byte[]>> RECORDS = new ConcurrentHashMap<>();
        private long sum;

        @Override
        boolean put(String key, Map<String, byte[]> fields) {
            return RECORDS.put(key, fields) == null;
        }

        @Override
        boolean get(String key) {
            Map<String, byte[]> fields = RECORDS.get(key);
            if (fields == null) {
                return false;
            }
            for (byte[] field : fields.values()) {
                for (byte value : field) {
                    sum += value;
                }
            }
            return true;
        }
    }

    /** A connection with an answer's bytes. */
    private abstract static class Remote extends Store {
        private final SocketChannel channel;
        private final ByteBuffer answers = ByteBuffer.allocate(1 << 16).flip();

        Remote(String socket) throws IOException {
            channel = SocketChannel.open(StandardProtocolFamily.UNIX);
            channel.connect(UnixDomainSocketAddress.of(socket));
        }

        final void send(ByteArrayOutputStream request) throws IOException {
            ByteBuffer bytes = ByteBuffer.wrap(request.toByteArray());
            while (bytes.hasRemaining()) {
                channel.write(bytes);
            }
        }

        private byte next() throws IOException {
            if (!answers.hasRemaining()) {
                answers.clear();
                if (channel.read(answers) < 0) {
                    throw new IOException("the server closed the connection");
                }
                answers.flip();
            }
            return answers.get();
        }

        final String line() throws IOException {
            StringBuilder line = new StringBuilder();
            for (byte value = next(); value != '\r'; value = next()) {
                line.append((char) value);
            }
            next();
            return line.toString();
        }

        final void skip(int bytes) throws IOException {
            for (int left = bytes + 2; left > 0;) {
                int here = Math.min(left, answers.remaining());
                answers.position(answers.position() + here);
                left -= here;
                if (left > 0) {
                    next();
                    left--;
                }
            }
        }

        static byte[] ascii(String text) {
            return text.getBytes(StandardCharsets.ISO_8859_1);
        }
    }

    private static final class Redis extends Remote {
        Redis(String socket) throws IOException {
            super(socket);
        }

        private static void add(ByteArrayOutputStream request, byte[] part) {
            request.writeBytes(ascii("$" + part.length + "\r\n"));
            request.writeBytes(part);
            request.writeBytes(ascii("\r\n"));
        }

        @Override
        boolean put(String key, Map<String, byte[]> fields) throws IOException {
            ByteArrayOutputStream request = new ByteArrayOutputStream();
            request.writeBytes(ascii("*" + (2 + 2 * fields.size()) + "\r\n"));
            add(request, ascii("HSET"));
            add(request, ascii(key));
            fields.forEach((name, value) -> {
                add(request, ascii(name));
                add(request, value);
            });
            send(request);
            return line().startsWith(":");
        }

        @Override
        boolean get(String key) throws IOException {
            ByteArrayOutputStream request = new ByteArrayOutputStream();
            request.writeBytes(ascii("*2\r\n"));
            add(request, ascii("HGETALL"));
            add(request, ascii(key));
            send(request);
            int parts = Integer.parseInt(line().substring(1));
            for (int part = 0; part < parts; part++) {
                skip(Integer.parseInt(line().substring(1)));
            }
            return parts > 0;
        }
    }

    private static final class Memcached extends Remote {
        Memcached(String socket) throws IOException {
            super(socket);
        }

        @Override
        boolean put(String key, Map<String, byte[]> fields) throws IOException {
            ByteArrayOutputStream value = new ByteArrayOutputStream();
            fields.values().forEach(value::writeBytes);
            ByteArrayOutputStream request = new ByteArrayOutputStream();
            request.writeBytes(ascii("set " + key + " 0 0 " + value.size() + "\r\n"));
            request.writeBytes(value.toByteArray());
            request.writeBytes(ascii("\r\n"));
            send(request);
            return line().equals("STORED");
        }

        @Override
        boolean get(String key) throws IOException {
            ByteArrayOutputStream request = new ByteArrayOutputStream();
            request.writeBytes(ascii("get " + key + "\r\n"));
            send(request);
            String[] header = line().split(" ");
            if (!header[0].equals("VALUE")) {
                return false;
            }
            skip(Integer.parseInt(header[3]));
            return line().equals("END");
        }
    }
}
