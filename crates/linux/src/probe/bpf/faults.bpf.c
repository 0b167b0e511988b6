// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Samples page faults of the targets. A sample holds the address, three registers and the top of the user
 * stack; ../../faults/ finds the code that faulted from them.
 *
 * The programs run on perf's software events for minor and major faults, which count finished faults; the
 * kernel calls a program once per sample period. The page table shows whether a fault mapped a page or a
 * huge page. Faults that map huge pages are rare, and a sample period misses them, so fault_huge traces each
 * of them where the kernel permits it. A token bucket per CPU limits the samples: the emptier it is, the more
 * pages lie between two samples. The next sample's weight includes the pages left out.
 *
 * vm_pgoff and anon_vma identify memory that mremap has moved: both stay with touched memory.
 *
 * Source: mm_account_fault in mm/memory.c; do_huge_pmd_anonymous_page in mm/huge_memory.c; copy_vma in
 * mm/vma.c; bpf_perf_event_data in include/uapi/linux/bpf_perf_event.h.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#define STACK_BYTES 16384
#define PAGE 4096
#define BUFFER_BYTES (16 << 20)
#define MAX_TARGETS 16384
#define COMM 16

/* struct bpf_perf_event_data; its registers are not used. */
struct fault_event {
	__u64 registers[PERF_REGISTERS];
	__u64 sample_period;
	__u64 address;
};

/* A private anonymous mapping; zeros for others, and if it is unknown. */
struct mapping {
	__u64 start;
	__u64 end;
	__u64 origin; /* its start when it was created */
	__u64 memory; /* the kernel's anon_vma, as a number */
};

struct fault {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u64 address;
	__u64 space; /* the address space, as a number */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 lr; /* link register; 0 on x86-64 */
	__u64 pages; /* weight: pages that the sample represents */
	struct mapping mapping;
	__u32 tgid;
	__u32 is_major;
	char comm[COMM];
	__u8 stack[STACK_BYTES];
};

#define HEAD_BYTES (sizeof(struct fault) - STACK_BYTES)

struct config {
	__u64 token_ns; /* time per token of a CPU */
	__u64 burst_ns; /* size of the bucket, as time */
	__u64 pages_min; /* minimum pages between two samples while the bucket is full */
	__u32 own; /* our process: never sampled, but its children are */
	__u32 all; /* all processes except `own` */
	__u32 children; /* children of targets are targets */
	__u32 sees_huge; /* fault_huge runs: others skip huge pages */
	__u64 page_offset; /* start of the direct map; 0: unknown */
	__u64 frame_mask; /* address bits of an entry */
	__u64 top_shift; /* of 4 KiB pages: 30 with 3 levels of page tables, 39 with 4, 48 with 5 */
	__u64 page_shift; /* 12, 14 or 16 */
};

struct state {
	__u64 last;
	__u64 saved_ns;
	__u64 left_out; /* pages since the last sample */
	__u64 lost; /* samples lost because the buffer was full */
	__u64 took_ns; /* time of the programs */
	__u64 calls;
};

EVENTS(BUFFER_BYTES);

MAP(targets, HASH, __u32, MAX_TARGETS);

MAP(configuration, ARRAY, struct config, 1);

MAP(states, PERCPU_ARRAY, struct state, 1);

MAP(scratch, PERCPU_ARRAY, struct fault, 1);

static __always_inline bool is_wanted(const struct config *config, __u32 tgid,
				      struct task_struct *task)
{
	__u32 parent, flags = 0;

	if (tgid == config->own)
		return 0;
	if (config->all || bpf_map_lookup_elem(&targets, &tgid))
		return 1;
	parent = BPF_CORE_READ(task, real_parent, tgid);
	if (parent == config->own)
		return 1;
	if (!config->children || !bpf_map_lookup_elem(&targets, &parent))
		return 0;
	/* As a target, its own children are found. */
	bpf_map_update_elem(&targets, &tgid, &flags, 0);
	return 1;
}

#define PAGES_PER_HUGE_PAGE 512

/* Returns the pages of 4 KiB that the fault has mapped, from the page table. */
static __always_inline __u64 pages_mapped(const struct config *config, struct task_struct *task,
					  __u64 address)
{
	__u64 here = (__u64)BPF_CORE_READ(task, mm, pgd);
	__u32 shift = config->top_shift;
	__u32 bits = config->page_shift - 3;
	__u64 one = 1ULL << (config->page_shift - 12);
	__u64 entry = 0, index;

	if (!config->page_offset || !here)
		return one;
	for (int level = 0; level < 4; level++) {
		index = (address >> shift) & ((1ULL << bits) - 1);
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(here + index * 8)))
			return one;
		if (!(entry & ENTRY_PRESENT) || shift <= config->page_shift)
			return one;
		if (IS_LEAF(entry))
			return 1ULL << (shift - 12);
		if (shift == config->page_shift + bits)
			return one;
		here = config->page_offset + (entry & config->frame_mask);
		shift -= bits;
	}
	return one;
}

static long find_mapping(struct task_struct *task, struct vm_area_struct *vma,
			 struct mapping *mapping)
{
	__u32 zero = 0;
	struct config *config = bpf_map_lookup_elem(&configuration, &zero);

	if (!config || BPF_CORE_READ(vma, vm_file))
		return 0;
	mapping->memory = (__u64)BPF_CORE_READ(vma, anon_vma);
	mapping->start = BPF_CORE_READ(vma, vm_start);
	mapping->end = BPF_CORE_READ(vma, vm_end);
	mapping->origin = BPF_CORE_READ(vma, vm_pgoff) << config->page_shift;
	return 0;
}

static __always_inline int hand_out(__u64 address, __u64 faults, __u64 pages, __u32 is_major)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct pt_regs *registers;
	struct config *config;
	struct state *state;
	struct fault *fault;
	struct mapping mapping = {};
	__u64 now, bytes, part, held, flags;
	__u32 zero = 0;
	int page;

	config = bpf_map_lookup_elem(&configuration, &zero);
	state = bpf_map_lookup_elem(&states, &zero);
	fault = bpf_map_lookup_elem(&scratch, &zero);
	if (!config || !state || !fault || !is_wanted(config, tgid, task))
		return 0;
	now = bpf_ktime_get_ns();
	state->calls++;
	if (!pages)
		pages = pages_mapped(config, task, address);
	if (faults && pages > 1 && config->sees_huge)
		return 0;
	pages *= faults ? faults : 1;
	state->saved_ns += now - state->last;
	state->last = now;
	if (state->saved_ns > config->burst_ns)
		state->saved_ns = config->burst_ns;
	state->left_out += pages;
	if (state->left_out > 1 << 28)
		state->left_out = 1 << 28;
	if (state->saved_ns < config->token_ns ||
	    state->left_out * state->saved_ns < config->pages_min * config->burst_ns)
		return 0;
	held = bpf_ringbuf_query(&events, 0 /* BPF_RB_AVAIL_DATA */);
	if (held > BUFFER_BYTES - 2 * STACK_BYTES) {
		state->lost++;
		return 0;
	}
	state->saved_ns -= config->token_ns;

	/* For a fault within a system call these are the user's registers, too. */
	registers = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	fault->time = now;
	fault->address = address;
	fault->space = (__u64)BPF_CORE_READ(task, mm);
	fault->ip = BPF_CORE_READ(registers, REGISTER_IP);
	fault->sp = BPF_CORE_READ(registers, REGISTER_SP);
	fault->fp = BPF_CORE_READ(registers, REGISTER_FP);
#ifdef REGISTER_LR
	fault->lr = BPF_CORE_READ(registers, REGISTER_LR);
#endif
	fault->pages = state->left_out;
	fault->tgid = tgid;
	fault->is_major = is_major;
	/* Fails while another thread changes mappings. */
	bpf_find_vma(bpf_get_current_task_btf(), address, find_mapping, &mapping, 0);
	fault->mapping = mapping;
	bpf_get_current_comm(fault->comm, COMM);

	/* Copies page by page: stops at the stack's end, and at a page that is not resident. */
	bytes = 0;
	part = PAGE - (fault->sp & (PAGE - 1));
	for (page = 0; page < STACK_BYTES / PAGE; page++) {
		if (bytes > STACK_BYTES - PAGE || part > PAGE)
			break;
		if (bpf_probe_read_user(&fault->stack[bytes], part, (void *)(fault->sp + bytes)))
			break;
		bytes += part;
		part = PAGE;
	}
	if (bytes > STACK_BYTES)
		return 0;
	/* The reader polls; wake it only before the buffer is full. */
	flags = held > BUFFER_BYTES / 8 ? 2 /* BPF_RB_FORCE_WAKEUP */ : 1 /* BPF_RB_NO_WAKEUP */;
	if (bpf_ringbuf_output(&events, fault, HEAD_BYTES + bytes, flags))
		state->lost++;
	else
		state->left_out = 0;
	state->took_ns += bpf_ktime_get_ns() - now;
	return 0;
}

SEC("perf_event")
int fault_minor(struct fault_event *event)
{
	return hand_out(event->address, event->sample_period, 0, 0);
}

SEC("perf_event")
int fault_major(struct fault_event *event)
{
	return hand_out(event->address, event->sample_period, 1, 1);
}

/* VM_FAULT_ERROR and VM_FAULT_FALLBACK: no huge page was mapped. */
#define FAULT_ERROR 0x873

SEC("fexit/do_huge_pmd_anonymous_page")
int fault_huge(__u64 *arguments)
{
	struct vm_fault *fault = (void *)arguments[0];

	if (arguments[1] & FAULT_ERROR)
		return 0;
	return hand_out(BPF_CORE_READ(fault, address), 0, PAGES_PER_HUGE_PAGE, 0);
}
