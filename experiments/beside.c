/*
 * Cost of paging out single pages, for the target and for programs beside it, by CPU: for docs/concepts/guard.md.
 * On swap that is there (isotherm swap zram --size 2G), as root:
 *
 *   cc -O1 -o /tmp/beside experiments/beside.c
 *   /tmp/beside free 1 ; /tmp/beside follow 1
 *
 * A program of one thread has 256 MiB and works on 16 pages of them; as many others as is said only use processors. Every
 * second of its pages is paged out by 256 a call: `free` where the scheduler likes, `follow` where the program ran last.
 */
#define _GNU_SOURCE
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

static volatile uint64_t *shared; /* 0: work done; 1: memory is filled */

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

static void work(char *memory)
{
	uint64_t random = 88172645463325252ULL, turn = 0;

	for (uint64_t i = 0; i < PAGES * PAGE; i += 8) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		*(uint64_t *)(memory + i) = i % PAGE < PAGE / 2 ? random : 7;
	}
	for (shared[1] = 1;; shared[0]++)
		for (int i = 0; i < 16; i++)
			turn += memory[i * 32 * PAGE + (turn & 63)]++;
}

static double rate(double for_seconds)
{
	uint64_t before = shared[0];
	double start = seconds(CLOCK_MONOTONIC);

	usleep(for_seconds * 1e6);
	return (shared[0] - before) / (seconds(CLOCK_MONOTONIC) - start);
}

int main(int argc, char **argv)
{
	int others = argc > 2 ? atoi(argv[2]) : 0, pid, fd;
	struct iovec pages[AT_ONCE];
	uint64_t before, done = 0;
	double usual, wall, cpu;
	char *memory;

	if (argc < 2 || others > 64)
		return fprintf(stderr, "usage: beside free|follow [OTHERS]\n"), 2;
	shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	setpgid(0, 0);
	pid = fork();
	if (!pid)
		work(memory);
	while (!shared[1])
		usleep(1000);
	for (int i = 0; i < others; i++)
		if (!fork())
			for (volatile uint64_t n = 0;; n++)
				;
	usleep(300000);
	usual = rate(1);
	fd = syscall(SYS_pidfd_open, pid, 0);
	before = shared[0];
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	for (uint64_t page = 1024; page < PAGES;) {
		int nr = 0;

		for (; nr < AT_ONCE && page < PAGES; page += 2)
			pages[nr++] = (struct iovec){ memory + page * PAGE, PAGE };
		if (!strcmp(argv[1], "follow"))
			follow(pid);
		if (syscall(SYS_process_madvise, fd, pages, nr, MADV_PAGEOUT, 0) < 0)
			return perror("process_madvise"), kill(0, SIGKILL);
		done += nr;
	}
	wall = seconds(CLOCK_MONOTONIC) - wall;
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("%s, %d others: %.1f us of CPU a page, the program lost %.2f s of %.2f s\n", argv[1], others, cpu / done * 1e6,
	       wall - (shared[0] - before) / usual, wall);
	fflush(stdout);
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	while (wait(0) > 0)
		;
	return 0;
}
