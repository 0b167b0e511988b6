/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* BPF maps with numeric keys. Include bpf_helpers.h first. */
#ifndef ISOTHERM_MAPS_H
#define ISOTHERM_MAPS_H

/* Defines a map of type BPF_MAP_TYPE_`map_type`. */
#define MAP(name, map_type, kind, nr)                  \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_##map_type); \
		__uint(max_entries, nr);               \
		__type(key, __u32);                    \
		__type(value, kind);                   \
	} name SEC(".maps")

/* Defines an array that user space can mmap. */
#define ARRAY(name, kind, nr)                      \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(max_entries, nr);           \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__type(key, __u32);                \
		__type(value, kind);               \
	} name SEC(".maps")

/* The ring buffer of what is handed out. */
#define EVENTS(bytes)                                \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_RINGBUF);  \
		__uint(max_entries, bytes);          \
	} events SEC(".maps")

#endif
