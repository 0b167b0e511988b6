// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Hands out what the kernel's DAMON says at its tracepoints, as it says it: one program copies the
 * event's bytes as they are. Where its fields lie is read from tracefs by who receives them
 * (../../damon_trace.rs), so that no kernel's layout is written down here.
 *
 * Only events of the kdamonds that were asked for are handed out; what did not fit into the buffer is
 * counted.
 *
 * Source: include/trace/events/damon.h.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#define EVENT_BYTES 96
#define MAX_KDAMONDS 16384

struct event {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 kdamond; /* process id */
	__u32 kind;
	__u8 bytes[EVENT_BYTES];
};

EVENTS(8 << 20);

MAP(kdamonds, HASH, __u32, MAX_KDAMONDS);

MAP(lost, ARRAY, __u64, 1);

static __always_inline int hand_out(void *context, __u32 kind)
{
	__u32 kdamond = (__u32)bpf_get_current_pid_tgid();
	struct event *event;
	__u32 zero = 0;
	__u64 *nr_lost;

	if (!bpf_map_lookup_elem(&kdamonds, &kdamond))
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		nr_lost = bpf_map_lookup_elem(&lost, &zero);
		if (nr_lost)
			__sync_fetch_and_add(nr_lost, 1);
		return 0;
	}
	event->time = bpf_ktime_get_ns();
	event->kdamond = kdamond;
	event->kind = kind;
	/* An event is part of the CPU's larger buffer, so the bytes behind a short one are readable. */
	if (bpf_probe_read_kernel(event->bytes, sizeof(event->bytes), context))
		__builtin_memset(event->bytes, 0, sizeof(event->bytes));
	/* The reader polls once per interval, so do not wake it. */
	bpf_ringbuf_submit(event, 1 /* BPF_RB_NO_WAKEUP */);
	return 0;
}

SEC("tracepoint/damon/damon_aggregated")
int aggregated(void *context)
{
	return hand_out(context, 0);
}

SEC("tracepoint/damon/damos_before_apply")
int before_apply(void *context)
{
	return hand_out(context, 1);
}

SEC("tracepoint/damon/damon_monitor_intervals_tune")
int intervals_tune(void *context)
{
	return hand_out(context, 2);
}

SEC("tracepoint/damon/damos_esz")
int effective_size(void *context)
{
	return hand_out(context, 3);
}
