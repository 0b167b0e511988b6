// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reads page tables: a list of addresses (walk) or whole tables (copy_tables).
 *
 * The tables are read through the kernel's direct map with bpf_probe_read_kernel, which cannot
 * fault. Nothing here writes to the kernel or to the target. The layouts below are mirrored, and
 * their sizes asserted, in ../walker.rs.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#define MAX_SLOTS 8192
#define MAX_TABLES 512
#define MAX_RUNS 8192
#define PAGES_PER_RUN 16 /* a power of two */

/* Flags of a slot, in the low bits of a page-aligned value. */
#define SLOT_PRESENT 0x001ULL
#define SLOT_ACCESSED 0x002ULL
#define SLOT_HUGE_2M 0x004ULL
#define SLOT_LARGER 0x008ULL /* with HUGE_2M: the leaf is larger, and this is a part of 2 MiB of it */
#define SLOT_UNREADABLE 0x010ULL
#define SLOT_PROTNONE 0x020ULL
#define SLOT_SWAPPED 0x040ULL /* not present, but not empty: swapped out or migrating */
#define SLOT_HUGE_1G 0x080ULL
#define SLOT_CHANGED 0x100ULL /* the table was replaced while it was copied */
#define SLOT_TABLE 0x200ULL   /* a table was copied */
#define SLOT_SPECIAL 0x400ULL
#define SLOT_ZEROS 0x800ULL /* find_zeros: a resident page that holds only zeros */

struct control {
	__u64 task;        /* task_struct of a thread of the target, found by locate */
	__u64 mm;          /* its mm_struct */
	__u64 pgd;         /* its top-level table (direct-map address) */
	__u64 exec_id;     /* number of exec calls; the kernel may reuse an mm_struct's address */
	__u32 tgid;        /* process that locate searches for (0: the one the iterator is limited to) */
	__u32 unused;
	__u64 page_offset; /* start of the direct map */
	__u64 frame_mask;  /* address bits of an entry */
	__u64 absent;      /* with PRESENT clear: PROT_NONE, also by NUMA balancing */
	__u32 nr_slots;    /* slots in use */
	__u32 top_shift;   /* of 4 KiB pages: 30 with 3 levels, 39 with 4, 48 with 5 */
	__u32 table_shift; /* copy_tables: level of the tables; of 4 KiB pages: 12, 21 or 30 */
	__u32 found;       /* locate: found the target with an address space */
	__u32 gone;        /* walk, copy_tables: the target has exited or called exec */
	__u32 notified;    /* walk: has MMU notifiers, so secondary page tables exist (KVM) */
	__u64 total_vm;    /* walk: pages mapped */
	__u64 map_count;   /* walk: mappings */
	__u64 locked_vm;   /* walk: pages that are locked, or pinned and charged to the target */
	__u32 page_shift;  /* 12, 14 or 16 */
	__u32 chunk;       /* copy_tables: neighbouring entries of a table to copy, a power of two */
};

/* Each level but the top one resolves this many bits of an address. */
#define LEVEL_BITS(c) ((c)->page_shift - 3)
#define INDEX(c, address, shift) (((address) >> (shift)) & ((1ULL << LEVEL_BITS(c)) - 1))
/* Level of huge pages. */
#define BLOCK_SHIFT(c) ((c)->page_shift + LEVEL_BITS(c))

/* A mapping whose pages cannot be reclaimed: mirrored in ../unreclaimable.rs. */
struct unreclaimable {
	__u64 start;
	__u64 end;
	__u64 flags;
};

/* Flags of a mapping (include/linux/mm.h). */
#define VM_PFNMAP 0x400ULL
#define VM_LOCKED 0x2000ULL
#define VM_IO 0x4000ULL
#define VM_HUGETLB 0x400000ULL

struct table {
	__u64 entries[512];
};

#include "control.h"

ARRAY(slots, __u64, MAX_SLOTS);

/* Entries of neighbouring pages. */
struct run {
	__u64 entries[PAGES_PER_RUN];
};

ARRAY(runs, struct run, MAX_RUNS);
ARRAY(tables, struct table, MAX_TABLES);

/* Converts a leaf entry to a slot's value: frame address and flags. */
static __always_inline __u64 describe(const struct control *c, __u64 entry, __u64 size_flag)
{
	__u64 flags = SLOT_PRESENT | size_flag;
	__u64 frame = entry & c->frame_mask;

	if (!(entry & ENTRY_PRESENT)) {
		flags |= SLOT_PROTNONE;
		frame = ABSENT_FRAME(entry) & c->frame_mask;
	}
	if (entry & ENTRY_ACCESSED)
		flags |= SLOT_ACCESSED;
	if (entry & ENTRY_SPECIAL)
		flags |= SLOT_SPECIAL;
	return frame | flags;
}

/* Converts a leaf above the lowest level. */
static __always_inline __u64 describe_leaf(const struct control *c, __u64 entry, __u64 address, __u32 shift)
{
	if (shift == 21)
		return describe(c, entry, SLOT_HUGE_2M);
	if (shift > BLOCK_SHIFT(c))
		return describe(c, entry, SLOT_HUGE_1G);
	return describe(c, entry, SLOT_HUGE_2M | SLOT_LARGER) +
	       (address & ((1ULL << shift) - 1) & ~0x1fffffULL);
}

/*
 * Descends from the top level to the table whose entries map 1 << stop bytes each, and writes its
 * address to *table. Returns SLOT_TABLE, or the slot's value if it meets a leaf or an empty entry first.
 * *entry is the last entry read and *at its address, so that the caller can read it again.
 */
static __always_inline __u64 descend(const struct control *c, __u64 address, __u32 stop, __u64 *table,
				     __u64 *entry, __u64 *at)
{
	__u32 shift = c->top_shift;
	__u64 here = c->pgd;
	__u64 e = 0;

	*at = 0;
	for (int level = 0; level < 5; level++) {
		if (shift <= stop)
			break;
		*at = here + INDEX(c, address, shift) * 8;
		if (bpf_probe_read_kernel(&e, sizeof(e), (void *)*at))
			return SLOT_UNREADABLE;
		if (!(e & ENTRY_PRESENT)) {
			if (shift == BLOCK_SHIFT(c) && (e & c->absent) && IS_LEAF(e))
				return describe_leaf(c, e, address, shift);
			return e ? SLOT_SWAPPED : 0;
		}
		if (IS_LEAF(e) && shift <= BLOCK_SHIFT(c) + LEVEL_BITS(c))
			return describe_leaf(c, e, address, shift);
		here = c->page_offset + (e & c->frame_mask);
		shift -= LEVEL_BITS(c);
	}
	*table = here;
	*entry = e;
	return SLOT_TABLE;
}

/*
 * A slot of walk holds a page's address, and the number of pages less one in the low bits; the pages
 * share one table. One read gets all their entries: it costs little more than the read of one entry.
 * The verifier requires a loop's context on the stack, so the callbacks look up the control again.
 */
static long walk_one(__u32 i, void *unused)
{
	__u64 *slot = bpf_map_lookup_elem(&slots, &i);
	struct run *run = bpf_map_lookup_elem(&runs, &i);
	struct control *c = get_control();
	__u64 table = 0, entry = 0, at, address, first, said;
	__u32 bytes;

	if (!slot || !run || !c)
		return 1;
	address = *slot & ~0xfffULL;
	bytes = ((*slot & (PAGES_PER_RUN - 1)) + 1) * 8;
	first = INDEX(c, address, c->page_shift);
#ifdef CONTIGUOUS
	/* The access flag may stand in any entry of the group. */
	first &= ~(CONTIGUOUS - 1);
	bytes = CONTIGUOUS * 8;
#endif
	said = descend(c, address, c->page_shift, &table, &entry, &at);
	if (said == SLOT_TABLE && bpf_probe_read_kernel(run, bytes, (void *)(table + first * 8)))
		said = SLOT_UNREADABLE;
	*slot = said;
	return 0;
}

static long copy_one(__u32 i, void *unused)
{
	__u64 *slot = bpf_map_lookup_elem(&slots, &i);
	struct table *copy = bpf_map_lookup_elem(&tables, &i);
	struct control *c = get_control();
	__u64 table = 0, entry = 0, again = 0, at, said, first;
	__u32 bytes;

	if (!slot || !copy || !c)
		return 1;
	bytes = (((c->chunk - 1) & 511) + 1) * 8;
	first = INDEX(c, *slot, c->table_shift) & ~((__u64)c->chunk - 1);
	said = descend(c, *slot, c->table_shift, &table, &entry, &at);
	if (said == SLOT_TABLE) {
		if (bpf_probe_read_kernel(copy, bytes, (void *)(table + first * 8)))
			said = SLOT_UNREADABLE;
		else if (at && (bpf_probe_read_kernel(&again, sizeof(again), (void *)at) ||
				((again ^ entry) & c->frame_mask)))
			said = SLOT_CHANGED;
	}
	*slot = said;
	return 0;
}

/* Part of a page's content, 512 bytes, for find_zeros. */
#define CHUNK_WORDS 64
#define CHUNKS_PER_PAGE 8

struct chunk {
	__u64 words[CHUNK_WORDS];
};

MAP(content, ARRAY, struct chunk, 1);

/* Replaces a page's address in the slot by its flags; SLOT_ZEROS: all its bytes are 0. */
static long look_for_zeros(__u32 i, void *unused)
{
	__u64 *slot = bpf_map_lookup_elem(&slots, &i);
	struct control *c = get_control();
	__u32 zero = 0;
	struct chunk *chunk = bpf_map_lookup_elem(&content, &zero);
	__u64 table = 0, entry = 0, at, address, said, from;

	if (!slot || !chunk || !c)
		return 1;
	address = *slot & ~0xfffULL;
	said = descend(c, address, c->page_shift, &table, &entry, &at);
	if (said == SLOT_TABLE) {
		said = SLOT_UNREADABLE;
		at = table + INDEX(c, address, c->page_shift) * 8;
		if (!bpf_probe_read_kernel(&entry, sizeof(entry), (void *)at))
			said = entry & (ENTRY_PRESENT | c->absent) ? describe(c, entry, 0) : 0;
	}
	if (!(said & SLOT_PRESENT) || (said & SLOT_SPECIAL)) {
		*slot = said;
		return 0;
	}
	from = c->page_offset + (said & ~0xfffULL);
	if (said & SLOT_HUGE_2M)
		from += address & 0x1ff000ULL;
	else if (said & SLOT_HUGE_1G)
		from += address & 0x3ffff000ULL;
	else
		from += address & ((1ULL << c->page_shift) - 1);
	for (int part = 0; part < CHUNKS_PER_PAGE; part++) {
		__u64 all = 0;

		if (bpf_probe_read_kernel(chunk, sizeof(*chunk), (void *)(from + part * sizeof(*chunk)))) {
			*slot = said | SLOT_UNREADABLE;
			return 0;
		}
#pragma unroll
		for (int word = 0; word < CHUNK_WORDS; word++)
			all |= chunk->words[word];
		if (all) {
			*slot = said;
			return 0;
		}
	}
	*slot = said | SLOT_ZEROS;
	return 0;
}

/* Returns whether the task still has the address space that locate found. */
static __always_inline bool still_there(const struct control *c)
{
	struct task_struct *task = (struct task_struct *)c->task;
	struct mm_struct *mm = (struct mm_struct *)c->mm;

	return c->task && BPF_CORE_READ(task, tgid) == (__s32)c->tgid &&
	       BPF_CORE_READ(task, self_exec_id) == c->exec_id &&
	       (__u64)BPF_CORE_READ(task, mm) == c->mm && (__u64)BPF_CORE_READ(mm, pgd) == c->pgd;
}

/* Finds the target's address space, from its first thread that has one. */
SEC("iter/task")
int locate(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct control *c = get_control();
	struct mm_struct *mm;

	if (!task || !c)
		return 0;
	if (c->found || (c->tgid && task->tgid != (__s32)c->tgid))
		return 0;
	mm = task->mm;
	if (!mm)
		return 0;
	c->task = (__u64)task;
	c->mm = (__u64)mm;
	c->pgd = (__u64)mm->pgd;
	c->exec_id = task->self_exec_id;
	c->tgid = task->tgid;
	c->found = 1;
	return 0;
}

/* Writes a struct unreclaimable for each mapping whose flags keep the kernel from reclaiming its pages. */
SEC("iter/task_vma")
int find_unreclaimable(struct bpf_iter__task_vma *ctx)
{
	struct vm_area_struct *vma = ctx->vma;
	struct unreclaimable found;

	if (!vma)
		return 0;
	found.flags = vma->vm_flags & (VM_PFNMAP | VM_LOCKED | VM_IO | VM_HUGETLB);
	if (!found.flags)
		return 0;
	found.start = vma->vm_start;
	found.end = vma->vm_end;
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

/* Reads cheap facts about the address space. */
static __always_inline void tell_facts(struct control *c)
{
	struct mm_struct *mm = (struct mm_struct *)c->mm;

	c->total_vm = BPF_CORE_READ(mm, total_vm);
	c->map_count = BPF_CORE_READ(mm, map_count);
	c->locked_vm = BPF_CORE_READ(mm, locked_vm);
	c->notified = 0;
	if (bpf_core_field_exists(mm->notifier_subscriptions))
		c->notified = BPF_CORE_READ(mm, notifier_subscriptions) != 0;
}

/* Defines a program that calls `one` for each slot and then `finish`, if the target still exists. */
#define SLOT_PROGRAM(name, one, finish)                    \
	SEC("syscall")                                     \
	int name(void *ctx)                                \
	{                                                  \
		struct control *c = get_control();         \
		__u32 unused = 0;                          \
                                                           \
		if (!c)                                    \
			return 1;                          \
		if (!still_there(c)) {                     \
			c->gone = 1;                       \
			return 0;                          \
		}                                          \
		bpf_loop(c->nr_slots, one, &unused, 0);    \
		finish(c);                                 \
		if (!still_there(c))                       \
			c->gone = 1;                       \
		return 0;                                  \
	}

static __always_inline void tell_nothing(struct control *c)
{
}

/* Replaces the address in each slot by the entry's flags. */
SLOT_PROGRAM(walk, walk_one, tell_facts)

/* Copies the table of the requested level for the address in each slot. */
SLOT_PROGRAM(copy_tables, copy_one, tell_nothing)

/* Finds pages that hold only zeros, among the addresses in the slots. */
SLOT_PROGRAM(find_zeros, look_for_zeros, tell_nothing)
