/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The map of struct control, which holds requests and results. page_table.bpf.c and page_cache.bpf.c each define
 * their own struct control before they include this file.
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
