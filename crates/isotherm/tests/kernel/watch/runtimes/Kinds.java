/** Has 24 MiB of an array, and uses 8 MiB of it: see ../kinds.py. */
public class Kinds {
    public static void main(String[] arguments) throws InterruptedException {
        byte[] memory = new byte[24 << 20];
        for (int at = 0; at < memory.length; at += 4096) {
            memory[at] = (byte) (at >> 12);
        }
        System.out.println("ready " + ProcessHandle.current().pid() + " - 8 16 -");
        long sum = 0;
        while (sum >= 0) {
            for (int at = 0; at < 8 << 20; at += 4096) {
                sum += memory[at] & 1;
            }
            Thread.sleep(20);
        }
    }
}
