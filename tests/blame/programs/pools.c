// Pools of memory that known functions touch first, in C.
//
// Each pool is built by one function that is not inlined, on one of four threads, one after the other. When all are
// built, one line of JSON says them; from then on `serve_requests` touches the hot ones every 50 ms; the idle
// ones stay untouched.
//
// `bytes` is counted, not measured. A block that malloc maps by itself, or a mapping: its pages that were stored to. A
// smaller block: malloc_usable_size and the 8 bytes of its header, for these lie side by side.
//
// `touched` is measured: the growth of anonymous resident memory meanwhile. Nothing else touches memory then: --recycle
// churns before, and `churn` starts when all are built.
//
// --recycle: each thread first allocates and frees as many bytes as its pools have, by `churn_open` and
// `churn_close`: half in blocks of 1 to 2 MiB, which go back to the kernel, half in blocks of 16 B to 64 KiB, which
// its arena keeps and pools are built in. One block of 1024 stays. `churn_steadily` goes on to replace small blocks.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define POOL __attribute__((noipa))
#define PAGE ((size_t)4096)
#define WHOLE 256 // Shares of the pools are of this.

struct node {
    struct node *left, *right;
    uint64_t payload[];
};

struct pool {
    const char *function;
    void (*build)(struct pool *, size_t);
    size_t share;
    bool is_idle;
    int thread;
    // The pool's contents: `length` bytes at `start`, or nodes from `nodes`.
    char *start;
    size_t length;
    struct node *nodes;
    size_t bytes, touched;
};

static const char *const THREADS[] = {"main", "session-filler", "decoder", "log-writer"};
enum { MAIN, SESSION_FILLER, DECODER, LOG_WRITER, THREAD_COUNT };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *must(void *pointer) {
    if (!pointer || pointer == MAP_FAILED)
        fail("cannot allocate");
    return pointer;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// Bytes of the pages that [start, start + length) lies on.
static size_t pages_of(const void *start, size_t length) {
    uintptr_t first = (uintptr_t)start & ~(PAGE - 1);
    return (((uintptr_t)start + length + PAGE - 1) & ~(PAGE - 1)) - first;
}

static size_t block_of(void *pointer) { return malloc_usable_size(pointer) + 8; }

static void set_flat(struct pool *pool, char *start, size_t length) {
    pool->start = start;
    pool->length = length;
    pool->bytes = pages_of(start, length);
}

// One allocation, filled at once.
POOL void index_build(struct pool *pool, size_t bytes) {
    char *index = must(malloc(bytes));
    memset(index, 0x5a, bytes);
    set_flat(pool, index, bytes);
}

// One large allocation, of which three quarters are stored to, a word on each page.
POOL void log_ring_open(struct pool *pool, size_t bytes) {
    char *ring = must(malloc(bytes / 3 * 4));
    for (size_t at = 0; at < bytes; at += PAGE)
        *(volatile uint64_t *)(ring + at) = at + 1;
    set_flat(pool, ring, bytes - PAGE + sizeof(uint64_t));
}

// A linked list of small allocations of several sizes.
POOL void session_cache_fill(struct pool *pool, size_t bytes) {
    uint64_t seed = 1;
    size_t built = 0;
    while (built < bytes) {
        size_t words = 2 + next_random(&seed) % 40;
        struct node *node = must(malloc(sizeof(struct node) + words * 8));
        *node = (struct node){.left = pool->nodes};
        for (size_t word = 0; word < words; word++)
            node->payload[word] = seed;
        pool->nodes = node;
        built += block_of(node);
    }
    pool->bytes = built;
}

// Rows of 256 KiB, each its own allocation, reached through a table.
POOL void image_decode(struct pool *pool, size_t bytes) {
    size_t row_bytes = 256 << 10, rows = bytes / row_bytes;
    char **image = must(malloc(rows * sizeof(char *)));
    for (size_t row = 0; row < rows; row++) {
        image[row] = must(malloc(row_bytes));
        for (size_t at = 0; at < row_bytes; at++)
            image[row][at] = (char)(row * at >> 3 | 1);
        // The ends of rows side by side in a heap share a page.
        pool->bytes += block_of(image[row]);
    }
    pool->start = (char *)image;
}

// An array that doubles by realloc.
POOL void metrics_table_load(struct pool *pool, size_t bytes) {
    size_t capacity = 64, count = 0, wanted = bytes / sizeof(uint64_t);
    uint64_t *table = must(malloc(capacity * sizeof(uint64_t)));
    while (count < wanted) {
        if (count == capacity) {
            capacity *= 2;
            table = must(realloc(table, capacity * sizeof(uint64_t)));
        }
        table[count] = count * 3 + 1;
        count++;
    }
    set_flat(pool, (char *)table, wanted * sizeof(uint64_t));
}

// A mapping without malloc.
POOL void archive_map(struct pool *pool, size_t bytes) {
    char *archive = must(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t at = 0; at < bytes; at += 64)
        *(volatile char *)(archive + at) = 1;
    set_flat(pool, archive, bytes);
}

// A binary tree, built by recursion.
POOL struct node *undo_tree_grow(struct pool *pool, int depth) {
    struct node *node = must(calloc(1, sizeof(struct node) + 104));
    node->payload[0] = (uint64_t)depth;
    pool->bytes += block_of(node);
    if (depth > 1) {
        node->left = undo_tree_grow(pool, depth - 1);
        node->right = undo_tree_grow(pool, depth - 1);
    }
    return node;
}

// Its list of roots is not counted: `undo_tree_grow` is not on the stack.
POOL void undo_trees_open(struct pool *pool, size_t bytes) {
    while (pool->bytes < bytes) {
        struct node *root = must(malloc(sizeof(struct node)));
        *root = (struct node){.left = pool->nodes, .right = undo_tree_grow(pool, 9)};
        pool->nodes = root;
    }
}

static struct pool pools[] = {
    {.function = "index_build", .build = index_build, .share = 96, .is_idle = true, .thread = MAIN},
    {.function = "session_cache_fill", .build = session_cache_fill, .share = 40, .is_idle = true, .thread = SESSION_FILLER},
    {.function = "image_decode", .build = image_decode, .share = 32, .is_idle = true, .thread = DECODER},
    {.function = "log_ring_open", .build = log_ring_open, .share = 56, .is_idle = false, .thread = LOG_WRITER},
    {.function = "metrics_table_load", .build = metrics_table_load, .share = 16, .is_idle = false, .thread = MAIN},
    {.function = "archive_map", .build = archive_map, .share = 8, .is_idle = true, .thread = MAIN},
    {.function = "undo_tree_grow", .build = undo_trees_open, .share = 8, .is_idle = false, .thread = MAIN},
};
enum { POOL_COUNT = sizeof pools / sizeof *pools };

static size_t mib = 256;
static bool is_recycled;
static pthread_barrier_t all_churned, one_built;
static volatile uint64_t sink;

struct churn {
    void **blocks;
    size_t count;
};

// Half of `bytes` in large blocks; of the rest as many bytes in each power of two.
POOL void churn_open(struct churn *churn, size_t bytes, uint64_t *seed) {
    size_t opened = 0, capacity = 1024;
    churn->blocks = must(malloc(capacity * sizeof(void *)));
    while (opened < bytes) {
        size_t bits = opened < bytes / 2 ? 20 : 4;
        while (bits < 15 && next_random(seed) % 2)
            bits++;
        size_t size = ((size_t)1 << bits) + next_random(seed) % ((size_t)1 << bits);
        if (churn->count == capacity)
            churn->blocks = must(realloc(churn->blocks, (capacity *= 2) * sizeof(void *)));
        char *block = must(malloc(size));
        memset(block, 0x11, size);
        churn->blocks[churn->count++] = block;
        opened += size;
    }
}

// Frees them in no order, but for one of 1024.
POOL void churn_close(struct churn *churn, uint64_t *seed) {
    for (size_t at = churn->count; at-- > 1;) {
        size_t other = next_random(seed) % (at + 1);
        void *block = churn->blocks[at];
        churn->blocks[at] = churn->blocks[other];
        churn->blocks[other] = block;
    }
    for (size_t at = 0; at < churn->count; at++)
        if (at % 1024 != 1023)
            free(churn->blocks[at]);
    free(churn->blocks);
    *churn = (struct churn){0};
}

POOL void *churn_steadily(void *unused) {
    (void)unused;
    uint64_t seed = 7;
    char *held[2048] = {0};
    for (;;) {
        for (int turn = 0; turn < 512; turn++) {
            size_t at = next_random(&seed) % 2048, size = 16 + next_random(&seed) % 1024;
            free(held[at]);
            held[at] = must(malloc(size));
            memset(held[at], 0x22, size);
        }
        usleep(10000);
    }
    return NULL;
}

// Anonymous resident memory. Of page tables: what statm says is counted by processor, and off by some pages.
static size_t resident(void) {
    FILE *file = must(fopen("/proc/self/smaps_rollup", "r"));
    char line[256];
    size_t kib = 0;
    while (!kib && fgets(line, sizeof line, file))
        sscanf(line, "Anonymous: %zu kB", &kib);
    fclose(file);
    return kib << 10;
}

static void build_and_measure(struct pool *pool) {
    size_t before = resident();
    pool->build(pool, (pool->share * mib << 20) / WHOLE);
    size_t after = resident();
    pool->touched = after > before ? after - before : 0;
}

static void build_on(int thread) {
    if (is_recycled) {
        uint64_t seed = (uint64_t)thread + 3;
        size_t share = 0;
        for (int at = 0; at < POOL_COUNT; at++)
            share += pools[at].thread == thread ? pools[at].share : 0;
        struct churn churn = {0};
        churn_open(&churn, (share * mib << 20) / WHOLE, &seed);
        churn_close(&churn, &seed);
    }
    pthread_barrier_wait(&all_churned);
    for (int at = 0; at < POOL_COUNT; at++) {
        if (pools[at].thread == thread)
            build_and_measure(&pools[at]);
        pthread_barrier_wait(&one_built);
    }
}

static void *run_thread(void *name) {
    int thread = MAIN;
    while (strcmp(THREADS[thread], name))
        thread++;
    build_on(thread);
    for (;;)
        pause();
    return NULL;
}

static void touch_nodes(const struct node *node) {
    if (!node)
        return;
    sink += node->payload[0];
    touch_nodes(node->left);
    touch_nodes(node->right);
}

static void serve_requests(double seconds) {
    for (double served = 0; served < seconds; served += 0.05) {
        for (int at = 0; at < POOL_COUNT; at++) {
            struct pool *pool = &pools[at];
            if (pool->is_idle)
                continue;
            for (size_t offset = 0; offset < pool->length; offset += PAGE)
                pool->start[offset]++;
            // The roots have no payload.
            for (struct node *root = pool->nodes; root; root = root->left)
                touch_nodes(root->right);
        }
        usleep(50000);
    }
}

static void print_truth(void) {
    printf("{\"language\":\"c\",\"pools\":[");
    for (int at = 0; at < POOL_COUNT; at++)
        printf("%s{\"function\":\"%s\",\"bytes\":%zu,\"touched\":%zu,\"idle\":%s,\"thread\":\"%s\"}", at ? "," : "",
               pools[at].function, pools[at].bytes, pools[at].touched, pools[at].is_idle ? "true" : "false",
               THREADS[pools[at].thread]);
    printf("]}\n");
    fflush(stdout);
}

static void start(void *(*run)(void *), const char *name) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, (void *)name) || pthread_setname_np(thread, name))
        fail("cannot start a thread");
}

int main(int argc, char **argv) {
    double seconds = 60;
    for (int at = 1; at < argc; at++) {
        if (!strcmp(argv[at], "--recycle"))
            is_recycled = true;
        else if (!strcmp(argv[at], "--mib") && at + 1 < argc)
            mib = strtoul(argv[++at], NULL, 10);
        else if (!strcmp(argv[at], "--seconds") && at + 1 < argc)
            seconds = strtod(argv[++at], NULL);
        else {
            fprintf(stderr, "usage: pools [--mib N] [--seconds S] [--recycle]\n");
            return 2;
        }
    }
    pthread_barrier_init(&all_churned, NULL, THREAD_COUNT);
    pthread_barrier_init(&one_built, NULL, THREAD_COUNT);
    for (int thread = MAIN + 1; thread < THREAD_COUNT; thread++)
        start(run_thread, THREADS[thread]);
    build_on(MAIN);
    if (is_recycled)
        start(churn_steadily, "churn");
    print_truth();
    serve_requests(seconds);
}
