/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Arrays that user space maps as well, as page_table.bpf.c and page_cache.bpf.c use them. Each of these has a
 * struct control, which says what is asked for and what was found.
 */
#ifndef ISOTHERM_ARRAYS_H
#define ISOTHERM_ARRAYS_H

#define ARRAY(name, kind, nr)                      \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(max_entries, nr);           \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__type(key, __u32);                \
		__type(value, kind);               \
	} name SEC(".maps")

ARRAY(control, struct control, 1);

static __always_inline struct control *get_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

#endif
