// Work that is mostly page faults, round after round, until it is stopped: `isotherm-bench watching`.
//   faults map             maps, touches and unmaps 32 MiB: nothing else
//   faults heap            fills, reads and frees blocks of a heap that goes back to the kernel again and again
//   faults run COMMAND...  another program, from its start to its end
// Prints for each round when it ended, in seconds since 1970, and the CPU seconds that it took.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1UL << 20)

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static double cpu(int who)
{
	struct rusage usage;
	getrusage(who, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void map(void)
{
	for (int part = 0; part < 4; part++) {
		char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			exit(1);
		for (size_t at = 0; at < 8 * MIB; at += 4096)
			memory[at] = 1;
		munmap(memory, 8 * MIB);
	}
}

static unsigned long heap(void)
{
	enum { BLOCKS = 512 };
	static char *blocks[BLOCKS];
	static unsigned long sum, seed = 1;
	for (int i = 0; i < BLOCKS; i++) {
		seed = seed * 6364136223846793005UL + 1442695040888963407UL;
		size_t size = 1024 + (seed >> 33) % (96 << 10);
		blocks[i] = malloc(size);
		memset(blocks[i], i, size);
		for (int again = 0; again < 8; again++)
			for (size_t at = 0; at < size; at += 64)
				sum += blocks[i][at];
	}
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	return sum;
}

static void run(char **command)
{
	int status;
	pid_t child = fork();
	if (!child) {
		execvp(command[0], command);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 || status)
		exit(1);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int is_run = !strcmp(mode, "run") && argc > 2;
	if (!is_run && strcmp(mode, "map") && strcmp(mode, "heap")) {
		fprintf(stderr, "usage: faults map|heap, or faults run COMMAND...\n");
		return 2;
	}
	for (;;) {
		int who = is_run ? RUSAGE_CHILDREN : RUSAGE_SELF;
		double before = cpu(who);
		if (is_run)
			run(argv + 2);
		else if (!strcmp(mode, "map"))
			map();
		else if (heap() == 1)
			return 1;
		printf("%.6f %.6f\n", now(), cpu(who) - before);
		fflush(stdout);
	}
}
