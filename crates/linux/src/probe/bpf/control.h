/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The struct control of page_table.bpf.c and of page_cache.bpf.c, each of which has its own: what is asked for, and
 * what was found.
 */
#ifndef ISOTHERM_CONTROL_H
#define ISOTHERM_CONTROL_H

ARRAY(control, struct control, 1);

static __always_inline struct control *get_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

#endif
