// Work that is mostly page faults, and what it took: `xtask bench stacks`.
//   faults map ROUNDS      maps, touches and unmaps 32 MiB a round: nothing else
//   faults heap ROUNDS     fills, reads and frees blocks of a heap that goes back to the kernel again and again
//   faults run COMMAND...  another program
// Prints the CPU seconds and the seconds that it took.
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
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static double cpu(int who)
{
	struct rusage usage;
	getrusage(who, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void map(long rounds)
{
	for (long part = 0; part < rounds * 4; part++) {
		char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			exit(1);
		for (size_t at = 0; at < 8 * MIB; at += 4096)
			memory[at] = 1;
		munmap(memory, 8 * MIB);
	}
}

static unsigned long heap(long rounds)
{
	enum { BLOCKS = 512 };
	static char *blocks[BLOCKS];
	unsigned long sum = 0, seed = 1;
	for (long round = 0; round < rounds; round++) {
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
	}
	return sum;
}

int main(int argc, char **argv)
{
	double started = now();
	int who = RUSAGE_SELF;
	if (argc > 2 && !strcmp(argv[1], "map")) {
		map(atol(argv[2]));
	} else if (argc > 2 && !strcmp(argv[1], "heap")) {
		if (heap(atol(argv[2])) == 1)
			return 1;
	} else if (argc > 2 && !strcmp(argv[1], "run")) {
		int status;
		pid_t child = fork();
		if (!child) {
			execvp(argv[2], argv + 2);
			_exit(127);
		}
		if (child < 0 || waitpid(child, &status, 0) < 0 || status)
			return 1;
		who = RUSAGE_CHILDREN;
	} else {
		fprintf(stderr, "usage: faults map|heap ROUNDS, or faults run COMMAND...\n");
		return 2;
	}
	printf("%.6f %.6f\n", cpu(who), now() - started);
	return 0;
}
