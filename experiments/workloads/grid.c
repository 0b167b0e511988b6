/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A solver on grids of several levels whose rows lie apart, as ocean_ncp's do, beside a table that is read at
 * random. What huge pages do to such programs shows in both: rows end long before the next begins, so that of
 * each 2 MiB a quarter to five eighths is ever written; and columns, like the table, miss the TLB at every access.
 *
 *   grid MIB SWEEPS POLICY TABLE_PERCENT
 *
 * MIB is what is written in all, TABLE_PERCENT how much of that is the table (0 for a grid alone; at 100, a table
 * alone, its words are incremented at random). POLICY is never
 * (no huge page at all, also none by others), always (huge pages at every first fault) or default (the system's).
 * Says "ready" once all is written, then, after SWEEPS sweeps, a line of JSON: seconds, mean and last resident
 * memory in bytes, and a checksum that is the same under every policy.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define SLOT (16 * PAGE) /* a row, and what is kept free behind it */
#define HUGE (2UL << 20)
#define NR_LEVELS 3
#define STEP (64 / sizeof(double)) /* one access to each cache line */

struct level {
	size_t nr_rows;
	size_t row_pages; /* written of each slot */
	double **rows;
};

static const size_t ROW_PAGES[NR_LEVELS] = { 10, 8, 4 };
static const size_t SHARE_PERCENT[NR_LEVELS] = { 50, 25, 25 };

static void *map(size_t bytes, int wants_huge)
{
	char *at = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			-1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
	if (wants_huge && madvise(at, bytes, MADV_HUGEPAGE)) {
		perror("madvise");
		exit(1);
	}
	return at;
}

static struct level make_level(size_t bytes, size_t row_pages, int wants_huge)
{
	struct level level = { bytes / (row_pages * PAGE), row_pages, NULL };
	char *memory = map(level.nr_rows * SLOT, wants_huge);

	level.rows = malloc(level.nr_rows * sizeof(double *));
	for (size_t row = 0; row < level.nr_rows; row++) {
		level.rows[row] = (double *)(memory + row * SLOT);
		for (size_t i = 0; i < row_pages * PAGE / sizeof(double); i++)
			level.rows[row][i] = 1.0 + (double)((row * 31 + i) % 97);
	}
	return level;
}

/* A column at a time: every access is in another row, and so on another page. */
static void relax(struct level *level)
{
	size_t columns = level->row_pages * PAGE / sizeof(double);

	for (size_t column = STEP; column + STEP < columns; column += STEP)
		for (size_t row = 1; row + 1 < level->nr_rows; row++) {
			double *here = level->rows[row] + column;

			*here = 0.25 * (here[-1] + here[1] + level->rows[row - 1][column] +
					level->rows[row + 1][column]);
		}
}

static uint64_t gather(const uint64_t *table, size_t words, uint64_t seed, size_t times)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < times; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		sum += table[seed % words];
	}
	return sum;
}

static uint64_t increment(uint64_t *table, size_t words, uint64_t seed, size_t times)
{
	for (size_t i = 0; i < times; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		table[seed % words]++;
	}
	return table[seed % words];
}

static double resident(void)
{
	unsigned long all = 0, pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu %lu", &all, &pages) != 2)
		exit(1);
	fclose(file);
	return (double)pages * PAGE;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	struct level levels[NR_LEVELS];
	uint64_t *table = NULL, sum = 0;
	double rss_sum = 0, started;

	if (argc != 5) {
		fprintf(stderr, "usage: grid MIB SWEEPS never|default|always TABLE_PERCENT\n");
		return 2;
	}
	size_t bytes = strtoul(argv[1], NULL, 10) << 20, sweeps = strtoul(argv[2], NULL, 10);
	size_t table_bytes = bytes / 100 * strtoul(argv[4], NULL, 10), words = table_bytes / sizeof(uint64_t);
	int wants_huge = !strcmp(argv[3], "always");

	if (!strcmp(argv[3], "never") && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) {
		perror("prctl");
		return 1;
	}
	for (int i = 0; i < NR_LEVELS; i++)
		levels[i] = make_level((bytes - table_bytes) / 100 * SHARE_PERCENT[i], ROW_PAGES[i], wants_huge);
	if (words) {
		table = map(table_bytes, wants_huge);
		for (size_t i = 0; i < words; i++)
			table[i] = i * 0x9e3779b97f4a7c15UL | 1;
	}
	printf("ready\n");
	fflush(stdout);
	started = now();
	for (size_t sweep = 0; sweep < sweeps; sweep++) {
		for (int i = 0; i < NR_LEVELS; i++)
			relax(&levels[i]);
		if (words && table_bytes < bytes / 100 * 100)
			sum += gather(table, words, 88172645463325252UL + sweep, table_bytes / 64);
		else if (words)
			sum += increment(table, words, 88172645463325252UL + sweep, table_bytes / 64);
		rss_sum += resident();
	}
	double seconds = now() - started, last = resident();
	for (int i = 0; i < NR_LEVELS; i++)
		for (size_t row = 0; row < levels[i].nr_rows; row += 7)
			sum += (uint64_t)levels[i].rows[row][STEP * (row % 50 + 1)];
	printf("{\"seconds\": %.3f, \"rss_mean\": %.0f, \"rss_last\": %.0f, \"checksum\": %lu}\n", seconds,
	       rss_sum / (double)(sweeps ? sweeps : 1), last, (unsigned long)sum);
	return 0;
}
