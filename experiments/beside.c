/*
 * Cost of paging out single pages, for the target and for programs beside it, by CPU: for docs/concepts/guard.md.
 * On swap that is there (isotherm swap zram --size 2G), as root:
 *
 *   cc -O1 -pthread -o /tmp/beside experiments/beside.c
 *   /tmp/beside free 1 ; /tmp/beside follow 1
 *   /tmp/beside free 0 2 ; /tmp/beside every 0 2
 *
 * A program of THREADS threads (1) has 256 MiB and works on 16 of its pages; OTHERS programs only use CPU time. Every
 * second of its pages is paged out by 256 a call: `free` not pinned, `follow` where the program ran last, `every` by one
 * SCHED_FIFO thread on each of the CPUs 0 to THREADS-1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES (256UL << 8)
#define AT_ONCE 256
#define THREADS_MAX 16

static volatile uint64_t *shared; /* 0: memory is filled; 8, 16, ...: work that a thread has done */
static char *memory;
static int nr_threads = 1, fd;
static pthread_barrier_t all_ready;

static double seconds(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Field 39 of /proc/PID/stat, whose name has no spaces here. */
static void follow(int pid)
{
	char path[64], text[1024] = "", *field = text;
	cpu_set_t there;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "r");
	if (!file || !fgets(text, sizeof(text), file))
		exit(1);
	fclose(file);
	for (int i = 1; i < 39; i++)
		field = strchr(field, ' ') + 1;
	CPU_ZERO(&there);
	CPU_SET(atoi(field), &there);
	sched_setaffinity(0, sizeof(there), &there);
}

static void *turns(void *mine)
{
	uint64_t turn = 0, nr = (uint64_t)mine;

	for (;; shared[8 * nr + 8]++)
		for (int i = 0; i < 16; i++)
			turn += memory[i * 32 * PAGE + 64 * nr + (turn & 63)]++;
	return 0;
}

static void work(void)
{
	uint64_t random = 88172645463325252ULL;
	pthread_t thread;

	for (uint64_t i = 0; i < PAGES * PAGE; i += 8) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		*(uint64_t *)(memory + i) = i % PAGE < PAGE / 2 ? random : 7;
	}
	for (uint64_t nr = 1; nr < nr_threads; nr++)
		pthread_create(&thread, 0, turns, (void *)nr);
	shared[0] = 1;
	turns(0);
}

static uint64_t done(void)
{
	uint64_t sum = 0;

	for (int nr = 0; nr < nr_threads; nr++)
		sum += shared[8 * nr + 8];
	return sum;
}

static double rate(double for_seconds)
{
	uint64_t before = done();
	double start = seconds(CLOCK_MONOTONIC);

	usleep(for_seconds * 1e6);
	return (done() - before) / (seconds(CLOCK_MONOTONIC) - start);
}

static void page_out(struct iovec *pages, int nr)
{
	if (nr && syscall(SYS_process_madvise, fd, pages, nr, MADV_PAGEOUT, 0) < 0)
		perror("process_madvise"), kill(0, SIGKILL);
}

struct part {
	struct iovec *pages;
	int cpu, nr;
};

static void *page_out_part(void *mine)
{
	struct part *part = mine;
	struct sched_param priority = { 1 };
	cpu_set_t there;

	CPU_ZERO(&there);
	CPU_SET(part->cpu, &there);
	sched_setaffinity(0, sizeof(there), &there);
	sched_setscheduler(0, SCHED_FIFO, &priority);
	pthread_barrier_wait(&all_ready);
	page_out(part->pages, part->nr);
	return 0;
}

static void page_out_on_every(struct iovec *pages, int nr)
{
	struct part parts[THREADS_MAX];
	pthread_t threads[THREADS_MAX];

	pthread_barrier_init(&all_ready, 0, nr_threads);
	for (int i = 0; i < nr_threads; i++) {
		int first = nr * i / nr_threads, end = nr * (i + 1) / nr_threads;

		parts[i] = (struct part){ pages + first, i, end - first };
		pthread_create(&threads[i], 0, page_out_part, &parts[i]);
	}
	for (int i = 0; i < nr_threads; i++)
		pthread_join(threads[i], 0);
}

int main(int argc, char **argv)
{
	int others = argc > 2 ? atoi(argv[2]) : 0, pid;
	struct iovec pages[AT_ONCE];
	uint64_t before, nr_paged_out = 0;
	double usual, wall, cpu;

	nr_threads = argc > 3 ? atoi(argv[3]) : 1;
	if (argc < 2 || others > 64 || nr_threads < 1 || nr_threads > THREADS_MAX)
		return fprintf(stderr, "usage: beside free|follow|every [OTHERS [THREADS]]\n"), 2;
	shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	setpgid(0, 0);
	pid = fork();
	if (!pid)
		work();
	while (!shared[0])
		usleep(1000);
	for (int i = 0; i < others; i++)
		if (!fork())
			for (volatile uint64_t n = 0;; n++)
				;
	usleep(300000);
	usual = rate(1);
	fd = syscall(SYS_pidfd_open, pid, 0);
	before = done();
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	for (uint64_t page = 1024; page < PAGES;) {
		int nr = 0;

		for (; nr < AT_ONCE && page < PAGES; page += 2)
			pages[nr++] = (struct iovec){ memory + page * PAGE, PAGE };
		if (!strcmp(argv[1], "follow"))
			follow(pid);
		if (!strcmp(argv[1], "every"))
			page_out_on_every(pages, nr);
		else
			page_out(pages, nr);
		nr_paged_out += nr;
	}
	wall = seconds(CLOCK_MONOTONIC) - wall;
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("%s, %d others, %d threads: %.1f us of CPU a page, the program lost %.2f s of %.2f s\n", argv[1], others,
	       nr_threads, cpu / nr_paged_out * 1e6, wall - (done() - before) / usual, wall);
	fflush(stdout);
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	while (wait(0) > 0)
		;
	return 0;
}
