// Programs that are hard for a sampler of page-fault stacks: hostile MODE [ARGUMENT].
//
// Each touches memory first, says `ready` on stdout and sleeps until it is killed, two minutes at most.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEEN __attribute__((noipa, visibility("default")))
#define MIB ((size_t)1 << 20)
#define PAGE 4096

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static char *map(size_t bytes, int more) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE | more, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("cannot map");
    return memory;
}

static void touch(volatile char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE)
        memory[at] = 1;
}

// Two names for one thing: what comes before and after something else.
SEEN void touch_before(size_t bytes) {
    touch(map(bytes, 0), bytes);
}

SEEN void touch_after(size_t bytes) {
    touch(map(bytes, 0), bytes);
    __asm__ volatile("");
}

#ifndef LIBRARY

static void ready_and_sleep(void) {
    puts("ready");
    fflush(stdout);
    sleep(120);
    exit(0);
}

static volatile sig_atomic_t is_asked;
static void be_asked(int signal) {
    (void)signal;
    is_asked = 1;
}

// Touches 64 MiB, and as many again after SIGUSR1.
static void touch_when_asked(void) {
    signal(SIGUSR1, be_asked);
    touch_before(64 * MIB);
    puts("waiting");
    fflush(stdout);
    while (!is_asked)
        usleep(10000);
    touch_after(64 * MIB);
}

SEEN void touch_again(volatile char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE)
        memory[at] = 1;
}

// Says `ready` itself, as a part of its memory stays in use.
static void use_a_part(void) {
    touch_before(40 * MIB);
    char *memory = map(24 * MIB, 0);
    touch_again(memory, 24 * MIB);
    puts("ready");
    fflush(stdout);
    alarm(120);
    for (;;) {
        touch_again(memory, 24 * MIB);
        usleep(50000);
    }
}

SEEN void *touch_on_thread(void *unused) {
    touch(map(MIB / 4, 0), MIB / 4);
    pause();
    return unused;
}

static void start_threads(void) {
    for (int at = 0; at < 300; at++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, touch_on_thread, NULL))
            fail("cannot start a thread");
    }
    sleep(1);
}

SEEN size_t descend(size_t depth) {
    if (!depth) {
        touch(map(32 * MIB, 0), 32 * MIB);
        return 1;
    }
    return descend(depth - 1) + 1;
}

// Code that no file has: push rbp; mov rbp, rsp; mov byte [rdi], 1; pop rbp; ret.
static const uint8_t CODE[] = {0x55, 0x48, 0x89, 0xe5, 0xc6, 0x07, 0x01, 0x5d, 0xc3};

SEEN void run_made_code(char *code, size_t bytes) {
    char *memory = map(bytes, 0);
    for (size_t at = 0; at < bytes; at += PAGE)
        ((void (*)(char *))(void *)code)(memory + at);
}

static void write_map(const char *path, const char *kind, const char *code) {
    FILE *file = fopen(path, "w");
    if (!file)
        fail(path);
    if (!strcmp(kind, "million"))
        for (size_t line = 0; line < 1000000; line++)
            fprintf(file, "%zx 10 filler_%zu\n", 0x10000 + 16 * line, line);
    const char *name = strcmp(kind, "control") ? "made_code" : "made\x1b[31m\r\b\x07\xe2\x80\xae\xff_code";
    fprintf(file, "%zx %zx %s\n", (size_t)code, sizeof CODE, name);
    if (!strcmp(kind, "control")) {
        // Lines that are none.
        fprintf(file, "ffffffffffffffff ffffffffffffffff over\n-1 -1 minus\n\n zz\n%zx\n", (size_t)code);
        for (size_t at = 0; at < 1 * MIB; at++)
            fputc('x', file);
    }
    fclose(file);
}

// A map as a JIT writes it, of a kind; none if that is "none".
static void make_code(const char *kind) {
    char *code = map(PAGE, PROT_EXEC), path[64], other[80];
    memcpy(code, CODE, sizeof CODE);
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    snprintf(other, sizeof other, "%s.other", path);
    if (!strcmp(kind, "symlink")) {
        write_map(other, kind, code);
        if (symlink(other, path))
            fail("cannot link");
    } else if (!strcmp(kind, "fifo")) {
        if (mkfifo(path, 0600))
            fail("cannot make a fifo");
    } else if (strcmp(kind, "none")) {
        write_map(path, kind, code);
    }
    if (!strcmp(kind, "foreign") && chown(path, 65534, 65534))
        fail("cannot give it away");
    run_made_code(code, 32 * MIB);
}

// Touches memory by a library that is then cut to a page.
static void use_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void (*touch_there)(size_t) = library ? (void (*)(size_t))dlsym(library, "touch_before") : NULL;
    if (!touch_there)
        fail(dlerror());
    touch_there(32 * MIB);
    if (truncate(path, PAGE))
        fail("cannot truncate");
}

struct growing {
    char *memory;
    size_t size, room;
};

// Doubles what it has when there is no room, as arrays of most languages do: realloc moves it by mremap.
static void append(struct growing *array, size_t bytes) {
    if (array->size + bytes > array->room) {
        array->room = array->room ? 2 * array->room : PAGE;
        array->memory = realloc(array->memory, array->room);
        if (!array->memory)
            fail("cannot grow");
    }
    memset(array->memory + array->size, 1, bytes);
    array->size += bytes;
}

SEEN void grow_alone(struct growing *array) {
    for (size_t at = 0; at < 96 * MIB; at += 32)
        append(array, 32);
}

SEEN void grow_in_turns(struct growing *one, struct growing *other) {
    for (size_t at = 0; at < 32 * MIB; at += 16) {
        append(one, 16);
        append(other, 16);
    }
}

static void grow(void) {
    static struct growing arrays[3];
    grow_alone(&arrays[0]);
    grow_in_turns(&arrays[1], &arrays[2]);
}

static char *arena;
static size_t used;

SEEN void one(uint32_t bits, int depth);
SEEN void zero(uint32_t bits, int depth);

static inline void next(uint32_t bits, int depth) {
    if (!depth)
        arena[used] = 1;
    else if (bits & 1)
        one(bits >> 1, depth - 1);
    else
        zero(bits >> 1, depth - 1);
}

void one(uint32_t bits, int depth) {
    next(bits, depth);
    __asm__ volatile("nop");
}

void zero(uint32_t bits, int depth) {
    next(bits, depth);
    __asm__ volatile("nop; nop");
}

// Each fault has a stack of its own, by the bits of a number that is used once.
static void make_stacks(uint32_t count) {
    size_t bytes = 64 * MIB;
    arena = map(bytes, 0);
    for (uint32_t number = 0; number < count; number++) {
        next(number * 2654435761u, 32);
        used += PAGE;
        if (used == bytes && number + 1 < count) {
            madvise(arena, bytes, MADV_DONTNEED);
            used = 0;
        }
    }
}

// Memory in huge pages, beside memory that is not: so it is a mapping of its own.
static char *map_huge(size_t bytes) {
    uintptr_t start = (uintptr_t)map(bytes + 4 * MIB, 0);
    char *memory = (char *)((start + 2 * MIB) & ~(2 * MIB - 1));
    if (madvise(memory, bytes, MADV_HUGEPAGE))
        fail("cannot ask for huge pages");
    return memory;
}

// One page in four is written.
SEEN void touch_sparsely(size_t bytes) {
    volatile char *memory = map_huge(bytes);
    for (size_t at = 0; at < bytes; at += 4 * PAGE)
        memory[at] = 1;
}

SEEN void touch_fully(size_t bytes) {
    touch(map_huge(bytes), bytes);
}

// The huge zero page belongs to no process.
SEEN char only_read(size_t bytes) {
    volatile char *memory = map_huge(bytes);
    char sum = 0;
    for (size_t at = 0; at < bytes; at += PAGE)
        sum += memory[at];
    return sum;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : "";
    if (!strcmp(mode, "asked")) {
        touch_when_asked();
    } else if (!strcmp(mode, "hot")) {
        use_a_part();
    } else if (!strcmp(mode, "threads")) {
        start_threads();
    } else if (!strcmp(mode, "deep")) {
        descend(10000);
    } else if (!strcmp(mode, "code")) {
        make_code(argument);
    } else if (!strcmp(mode, "exec")) {
        touch_before(32 * MIB);
        // The name stays what it was; all else is another program's.
        execl("/proc/self/exe", argv[0], "executed", NULL);
        fail("cannot exec");
    } else if (!strcmp(mode, "executed")) {
        touch_after(32 * MIB);
    } else if (!strcmp(mode, "deleted")) {
        if (unlink(argv[0]))
            fail("cannot delete");
        touch_before(32 * MIB);
    } else if (!strcmp(mode, "replaced")) {
        // Garbage where the program was.
        char garbage[4096];
        memset(garbage, 0x7f, sizeof garbage);
        unlink(argv[0]);
        int file = open(argv[0], O_CREAT | O_WRONLY, 0755);
        if (write(file, garbage, sizeof garbage) < 0)
            fail("cannot write");
        touch_before(32 * MIB);
    } else if (!strcmp(mode, "library")) {
        use_library(argument);
    } else if (!strcmp(mode, "grow")) {
        grow();
    } else if (!strcmp(mode, "stacks")) {
        make_stacks((uint32_t)strtoul(argument, NULL, 10));
    } else if (!strcmp(mode, "huge")) {
        touch_sparsely(64 * MIB);
        touch_fully(64 * MIB);
        only_read(16 * MIB);
    } else {
        fprintf(stderr, "usage: hostile MODE [ARGUMENT]\n");
        return 2;
    }
    ready_and_sleep();
}
#endif
