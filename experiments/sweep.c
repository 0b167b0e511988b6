/* Reads 300 MiB once after every 6 s in which it reads 20 MiB: sweep ORDER (same, random, once) SWEEPS. Prints how many
 * pages each sweep reads back from swap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 300 * 256, HOT = 20 * 256 };

static unsigned long random_number(void)
{
	static unsigned long x = 88172645463325252;

	x ^= x << 13;
	x ^= x >> 7;
	return x ^= x << 17;
}

static char *memory(long pages)
{
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || madvise(at, pages * PAGE, MADV_NOHUGEPAGE))
		exit(1);
	for (long word = 0; word < pages * PAGE / 64; word++)
		*(unsigned long *)(at + word * 64) = random_number();
	return at;
}

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_majflt;
}

int main(int argc, char **argv)
{
	static int order[PAGES];
	volatile char *swept = memory(PAGES), *hot = memory(HOT);

	if (argc != 3)
		return 2;
	for (int i = 0; i < PAGES; i++)
		order[i] = i;
	puts("ready");
	fflush(stdout);
	for (int sweep = 0; sweep < atoi(argv[2]); sweep++) {
		if (!strcmp(argv[1], "random") || (!strcmp(argv[1], "once") && !sweep)) {
			for (int i = PAGES - 1; i > 0; i--) {
				int other = random_number() % (i + 1), page = order[i];

				order[i] = order[other];
				order[other] = page;
			}
		}
		for (time_t end = time(NULL) + 6; time(NULL) < end; usleep(20000))
			for (int i = 0; i < HOT; i++)
				hot[(long)i * PAGE];
		long before = faults();

		for (int i = 0; i < PAGES; i++)
			swept[(long)order[i] * PAGE];
		printf("%ld\n", faults() - before);
		fflush(stdout);
	}
	return 0;
}
