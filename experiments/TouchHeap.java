/** Does nothing: the JVM has touched all of its heap before it runs this (-XX:+AlwaysPreTouch). */
public final class TouchHeap {
    public static void main(String[] args) {
        System.out.println("heap: " + (Runtime.getRuntime().totalMemory() >> 20) + " MiB");
    }
}
