/** Fills a heap with args[0] MiB, then works on a twentieth of it for args[1] seconds; tells how far it got, with args[2] all the time. */
public final class IdleHeap {
    private static final int BLOCK = 64 << 10;

    public static void main(String[] args) {
        byte[][] blocks = new byte[Integer.parseInt(args[0]) * ((1 << 20) / BLOCK)][];
        // A page compresses to about a half: random bytes, twice.
        java.util.Random random = new java.util.Random(1);
        byte[] half = new byte[2048];
        for (int i = 0; i < blocks.length; i++) {
            blocks[i] = new byte[BLOCK];
            random.nextBytes(half);
            for (int j = 0; j < BLOCK; j += half.length) {
                System.arraycopy(half, 0, blocks[i], j, half.length);
            }
        }
        int hot = Math.max(1, blocks.length / 20);
        long state = 1;
        long done = 0;
        long sum = 0;
        long begun = System.nanoTime();
        long time = Long.parseLong(args[1]) * 1_000_000_000L;
        while (System.nanoTime() - begun < time) {
            for (int i = 0; i < 10_000; i++) {
                state = state * 6364136223846793005L + 1442695040888963407L;
                byte[] block = blocks[(int) ((state >>> 33) % hot)];
                sum += ++block[(int) ((state >>> 17) % BLOCK) & (BLOCK - 1)];
            }
            done += 10_000;
            if (args.length > 2 && done % 100_000 == 0) {
                System.out.println("rounds " + done);
            }
        }
        double seconds = (System.nanoTime() - begun) / 1e9;
        System.out.printf(java.util.Locale.ROOT, "throughput: %.1f (%d)%n", done / seconds, sum);
    }
}
