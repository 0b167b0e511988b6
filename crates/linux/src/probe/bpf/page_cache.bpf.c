// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reads struct page of physical frames: finds the folios of the page cache, their state and their files.
 *
 * bpf_probe_read_kernel reads everything; it cannot fault. Nothing here writes to the kernel. The kernel may
 * change the data meanwhile, so user space checks it again (the file's inode once it is open).
 * The layouts below are mirrored, and their sizes asserted, in ../../cache/memmap.rs.
 *
 * Sources: include/linux/mm_types.h, include/linux/page-flags.h.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#define MAX_FOLIOS 8192
#define MAX_FILES 64
#define MAX_STEPS (1 << 23)
#define MAX_NAMES 40
#define PATH_BYTES 4032
#define NAME_BYTES 256

/* 8-byte words of a struct page; user space refuses kernels where it is larger or smaller. */
#define UNIT_WORDS 8

/* Maximum order of a folio; a larger value is a torn read. */
#define MAX_ORDER 18
#define MAX_FREE_ORDER 10

/* State bits of a folio's word, above its frame (40 bits) and its order (8 bits). */
#define STATE_REFERENCED 0x0001ULL
#define STATE_ACTIVE 0x0002ULL
#define STATE_WORKINGSET 0x0004ULL
#define STATE_DIRTY 0x0008ULL
#define STATE_WRITEBACK 0x0010ULL
#define STATE_UNEVICTABLE 0x0020ULL
#define STATE_MAPPED 0x0040ULL
#define STATE_LOCKED 0x0080ULL

struct control {
	__u64 memmap;   /* scan: address of the struct page of frame 0 */
	__u64 next;     /* scan: next frame */
	__u64 end;      /* scan: end of the frames, exclusive */
	__u64 mapping;  /* find: the address_space of the file behind fd */
	__u64 first;    /* find: its first page, if it has only one */
	__u32 fd;       /* find */
	__u32 unit;     /* find: bytes of a struct page */
	__u32 nr;       /* scan: folios found; describe: files requested */
	__u32 nr_read;  /* scan: struct pages read */
	__u32 most;     /* list: maximum number of folios at once */
	__u32 tried;    /* scan: the sampled frame of a chunk */
	/* scan: one bit per chunk, by the low bits of its number: its frames are assumed to be anonymous */
	__u64 anonymous[4];
};

/* A folio of a file. */
struct folio_words {
	__u64 frame; /* with order and state */
	__u64 mapping;
	__u64 index; /* in pages */
	__u64 group; /* struct mem_cgroup, and flags in the low bits */
};

/* Facts about a file; its mapping is the key. */
struct file_words {
	__u64 mapping;
	__u64 inode; /* inode number; 0: not readable */
	__u64 magic; /* of the file system */
	__u64 size;
	__u64 nr_pages;
	__u32 device;
	__u32 own_device; /* of a block device's inode */
	__u32 generation;
	__u32 links;
	__u32 mode;
	__u32 path_bytes; /* bytes of the names; 0: unknown */
	char path[PATH_BYTES]; /* names from the file's own to the root's, each ends with a 0 */
};

/* A control group; its struct mem_cgroup is the key. */
struct group_words {
	__u64 group;
	__u64 id; /* inode number of its directory; 0: not readable */
};

#include "control.h"

ARRAY(folios, struct folio_words, MAX_FOLIOS);
ARRAY(files, struct file_words, MAX_FILES);
ARRAY(groups, struct group_words, MAX_FILES);

/* Frames of a chunk: their struct pages fill one page of the kernel's memory and are read at once. */
#define CHUNK 64

struct descriptions {
	__u64 words[CHUNK * UNIT_WORDS];
};

MAP(descriptions, ARRAY, struct descriptions, 1);

/* Defines a program that runs `prepare`, then calls `one` up to `times` times. */
#define PROGRAM(name, one, prepare, times)           \
	SEC("syscall")                               \
	int name(void *ctx)                          \
	{                                            \
		struct control *c = get_control();   \
		__u32 unused = 0;                    \
                                                     \
		if (!c)                              \
			return 1;                    \
		prepare;                             \
		bpf_loop(times, one, &unused, 0);    \
		return 0;                            \
	}

/* Defines a program that fills the words from index 0 while `one` finds folios. */
#define FIND_PROGRAM(name, one) PROGRAM(name, one, c->nr = 0, MAX_STEPS)
/* Defines a program that answers the first `nr` words. */
#define TELL_PROGRAM(name, one) PROGRAM(name, one, (void)0, c->nr)

#define FLAG(name) (1ULL << bpf_core_enum_value(enum pageflags, name))

/* Returns a member of a struct page or folio that was read as words. */
#define MEMBER(words, kind, type, member) \
	(*(kind *)((char *)(words) + __builtin_preserve_field_info(((type *)0)->member, BPF_FIELD_BYTE_OFFSET)))

/* Returns whether a frame is the first of a free block; the block has 1 << private frames. */
static __always_inline bool is_free(__u32 page_type)
{
	if (bpf_core_enum_value_exists(enum pagetype, PGTY_buddy))
		return page_type >> 24 == bpf_core_enum_value(enum pagetype, PGTY_buddy);
	return (page_type & 0xf0000080) == 0xf0000000;
}

/* Returns the order of a large folio; `words` holds its first two struct pages. */
static __always_inline __u32 order_of(__u64 *words)
{
	char *second = (char *)words + bpf_core_type_size(struct page);

	if (bpf_core_field_exists(((struct page *)0)->compound_order))
		return MEMBER(second, __u8, struct page, compound_order);
	if (bpf_core_field_exists(((struct folio *)0)->_folio_order))
		return MEMBER(words, __u8, struct folio, _folio_order);
	return *(__u8 *)second;
}

/* Returns whether a large folio is mapped, if the kernel counts the mappings of whole folios. */
static __always_inline bool is_large_mapped(__u64 *words)
{
	if (bpf_core_field_exists(((struct folio *)0)->_large_mapcount))
		return MEMBER(words, __s32, struct folio, _large_mapcount) >= 0;
	return 0;
}

/*
 * Returns whether the frame described by `words` belongs to a folio of a file. Writes the folio to *found and
 * the number of its frames to *nr. `two` holds the struct pages of this and the next frame; large folios need
 * both. A folio of the `wanted` mapping also counts before the kernel has put it on an LRU list.
 */
static __always_inline int tell_frame(struct control *c, __u64 frame, __u64 *words, __u64 *two, __u64 wanted,
				      struct folio_words *found, __u64 *nr)
{
	__u64 flags, mapping, state = 0;
	__u32 order = 0;

	*nr = 1;
	c->nr_read++;
	flags = words[0];
	/* A tail page points to its head. */
	if (words[1] & 1)
		return 0;
	if (flags & FLAG(PG_head)) {
		order = order_of(two);
		if (order > MAX_ORDER)
			order = 0;
	} else if (!(flags & FLAG(PG_lru)) && is_free(MEMBER(words, __u32, struct page, page_type))) {
		order = MEMBER(words, __u64, struct page, private);
		if (order > MAX_FREE_ORDER)
			order = 0;
	}
	order &= 31;
	/* Folios are naturally aligned; otherwise the read was torn. */
	if (frame & ((1ULL << order) - 1))
		order = 0;
	*nr = 1ULL << order;
	mapping = MEMBER(words, __u64, struct folio, mapping);
	if (flags & FLAG(PG_swapbacked) || !mapping || mapping & 3)
		return 0;
	if (!(flags & FLAG(PG_lru)) && mapping != wanted)
		return 0;
	if (flags & FLAG(PG_referenced))
		state |= STATE_REFERENCED;
	if (flags & FLAG(PG_active))
		state |= STATE_ACTIVE;
	if (flags & FLAG(PG_workingset))
		state |= STATE_WORKINGSET;
	if (flags & FLAG(PG_dirty))
		state |= STATE_DIRTY;
	if (flags & FLAG(PG_writeback))
		state |= STATE_WRITEBACK;
	if (flags & FLAG(PG_unevictable))
		state |= STATE_UNEVICTABLE;
	if (flags & FLAG(PG_locked))
		state |= STATE_LOCKED;
	if (order ? is_large_mapped(two) : MEMBER(words, __s32, struct folio, _mapcount) >= 0)
		state |= STATE_MAPPED;
	found->frame = frame | (__u64)order << 40 | state << 48;
	found->mapping = mapping;
	found->index = MEMBER(words, __u64, struct folio, index);
	found->group = 0;
	if (bpf_core_field_exists(((struct folio *)0)->memcg_data))
		found->group = MEMBER(words, __u64, struct folio, memcg_data);
	return 1;
}

/* Does the same, and reads the struct page first. */
static __always_inline int read_frame(struct control *c, __u64 frame, __u64 wanted, struct folio_words *found,
				      __u64 *nr)
{
	__u64 words[2 * UNIT_WORDS] = {};
	void *at = (void *)(c->memmap + frame * bpf_core_type_size(struct page));

	*nr = 1;
	if (bpf_probe_read_kernel(words, sizeof(words) / 2, at))
		return 0;
	if (words[0] & FLAG(PG_head) && bpf_probe_read_kernel(words, sizeof(words), at))
		return 0;
	return tell_frame(c, frame, words, words, wanted, found, nr);
}

/* Examines the next frame of the chunk that ends at *end. */
static long scan_one(__u32 i, __u64 *end)
{
	struct control *c = get_control();
	struct descriptions *read;
	struct folio_words *found;
	__u64 at, nr_frames;
	__u32 nr, zero = 0;

	read = bpf_map_lookup_elem(&descriptions, &zero);
	if (!c || !read || c->next >= *end)
		return 1;
	nr = c->nr;
	found = bpf_map_lookup_elem(&folios, &nr);
	if (!found)
		return 1;
	at = c->next & (CHUNK - 1);
	/* A large folio begins at an even frame. */
	if (tell_frame(c, c->next, read->words + at * UNIT_WORDS, read->words + (at & (CHUNK - 2)) * UNIT_WORDS, 0,
		       found, &nr_frames))
		c->nr = nr + 1;
	c->next += nr_frames;
	return 0;
}

/* Returns whether a frame holds anonymous memory. */
static __always_inline bool is_anonymous(struct control *c, __u64 frame)
{
	__u64 words[UNIT_WORDS] = {};

	if (bpf_probe_read_kernel(words, sizeof(words), (void *)(c->memmap + frame * bpf_core_type_size(struct page))))
		return 0;
	c->nr_read++;
	return !(words[1] & 1) && (MEMBER(words, __u64, struct folio, mapping) & 3) == 1;
}

static long scan_chunk(__u32 i, void *unused)
{
	struct control *c = get_control();
	struct descriptions *read;
	__u64 first, end, number;
	__u32 zero = 0;

	read = bpf_map_lookup_elem(&descriptions, &zero);
	if (!c || !read || c->next >= c->end || c->nr >= MAX_FOLIOS)
		return 1;
	first = c->next & ~(__u64)(CHUNK - 1);
	end = first + CHUNK;
	number = first / CHUNK;
	if (c->anonymous[number / 64 & 3] >> (number & 63) & 1 && is_anonymous(c, first + (c->tried & (CHUNK - 1)))) {
		c->next = end;
		return 0;
	}
	if (bpf_probe_read_kernel(read, sizeof(*read), (void *)(c->memmap + first * bpf_core_type_size(struct page)))) {
		/* A hole is at least one section; its struct pages fill 512 pages. */
		c->next = end;
		return 0;
	}
	if (end > c->end)
		end = c->end;
	bpf_loop(CHUNK, scan_one, &end, 0);
	return 0;
}

/* Finds folios of files from frame `next` to `end`, until `folios` is full. */
FIND_PROGRAM(scan, scan_chunk)

static long look_one(__u32 i, void *unused)
{
	struct folio_words *found = bpf_map_lookup_elem(&folios, &i);
	struct control *c = get_control();
	__u64 nr_frames, wanted;

	if (!c || !found)
		return 1;
	wanted = found->mapping;
	found->mapping = 0;
	read_frame(c, found->frame, wanted, found, &nr_frames);
	return 0;
}

/* Reads the frames of the first `nr` words again; a mapping of 0: no folio of a file. */
TELL_PROGRAM(look, look_one)

/* Levels of an xarray, and slots of its nodes. */
#define MAX_LEVELS 11
#define NODE_SLOTS 64

/* Finds the folio at index `next` of a file, or moves `next` to the next index that may hold one. */
static long list_one(__u32 i, void *unused)
{
	struct control *c = get_control();
	struct address_space *mapping;
	struct folio_words *found;
	__u64 entry, node, slot, nr_frames, shift = 0;
	void *slots;
	__u32 nr;

	if (!c || c->next >= c->end)
		return 1;
	nr = c->nr;
	found = bpf_map_lookup_elem(&folios, &nr);
	if (!found || nr >= c->most)
		return 1;
	mapping = (struct address_space *)c->mapping;
	entry = (__u64)BPF_CORE_READ(mapping, i_pages.xa_head);
	/* An entry in the xarray's head is the file's only page, at index 0. */
	if ((entry & 3) != 2 && c->next > 0)
		entry = 0;
	if (!entry) {
		c->next = c->end;
		return 1;
	}
	for (int level = 0; level < MAX_LEVELS; level++) {
		if ((entry & 3) != 2)
			break;
		node = entry & ~3ULL;
		shift = BPF_CORE_READ((struct xa_node *)node, shift) & 63;
		if (level == 0 && c->next >> shift >= NODE_SLOTS) {
			c->next = c->end;
			return 1;
		}
		slots = (void *)node + bpf_core_field_offset(struct xa_node, slots);
		slot = (c->next >> shift) & (NODE_SLOTS - 1);
		if (bpf_probe_read_kernel(&entry, sizeof(entry), slots + slot * 8))
			entry = 0;
		/* The middle of a large folio: go to its start. */
		if ((entry & 3) == 2 && entry >> 2 < NODE_SLOTS &&
		    bpf_probe_read_kernel(&entry, sizeof(entry), slots + (entry >> 2) * 8))
			entry = 0;
	}
	slot = c->next;
	if (entry && !(entry & 3) && entry >= c->memmap &&
	    read_frame(c, (entry - c->memmap) / bpf_core_type_size(struct page), c->mapping, found, &nr_frames) &&
	    found->mapping == c->mapping && found->index <= slot && found->index + nr_frames > slot) {
		c->nr = nr + 1;
		c->next = found->index + nr_frames;
		return 0;
	}
	/* Empty, a shadow entry of a reclaimed page, or changed meanwhile. */
	c->next = ((slot >> shift) + 1) << shift;
	return 0;
}

/* Finds the cached pages of a file from index `next` to `end`, at most `most`, until `folios` is full. */
FIND_PROGRAM(list, list_one)

/* Copies the names of a file and of its directories, up to the root of its file system. */
static __always_inline void tell_path(struct file_words *f, struct inode *inode)
{
	struct dentry *root = BPF_CORE_READ(inode, i_sb, s_root);
	struct hlist_node *alias = BPF_CORE_READ(inode, i_dentry.first);
	struct dentry *entry, *parent;
	__u32 at = 0;
	long bytes;

	f->path_bytes = 0;
	if (!alias)
		return;
	entry = (void *)alias - bpf_core_field_offset(struct dentry, d_u.d_alias);
	for (int i = 0; i < MAX_NAMES; i++) {
		if (entry == root) {
			f->path_bytes = at;
			return;
		}
		if (at > PATH_BYTES - NAME_BYTES)
			return;
		bytes = bpf_probe_read_kernel_str(f->path + at, NAME_BYTES, BPF_CORE_READ(entry, d_name.name));
		if (bytes <= 0 || bytes > NAME_BYTES)
			return;
		at += bytes;
		parent = BPF_CORE_READ(entry, d_parent);
		if (!parent || parent == entry)
			return;
		entry = parent;
	}
}

static long describe_one(__u32 i, void *unused)
{
	struct file_words *f = bpf_map_lookup_elem(&files, &i);
	struct address_space *mapping;
	struct inode *inode;

	if (!f)
		return 1;
	mapping = (struct address_space *)f->mapping;
	inode = BPF_CORE_READ(mapping, host);
	f->inode = inode ? BPF_CORE_READ(inode, i_ino) : 0;
	f->nr_pages = BPF_CORE_READ(mapping, nrpages);
	f->magic = BPF_CORE_READ(inode, i_sb, s_magic);
	f->device = BPF_CORE_READ(inode, i_sb, s_dev);
	f->own_device = BPF_CORE_READ(inode, i_rdev);
	f->size = BPF_CORE_READ(inode, i_size);
	f->generation = BPF_CORE_READ(inode, i_generation);
	f->links = BPF_CORE_READ(inode, i_nlink);
	f->mode = BPF_CORE_READ(inode, i_mode);
	tell_path(f, inode);
	return 0;
}

/* Fills in the facts about the files of the first `nr` words. */
TELL_PROGRAM(describe, describe_one)

static long tell_group(__u32 i, void *unused)
{
	struct group_words *g = bpf_map_lookup_elem(&groups, &i);
	struct mem_cgroup *group;

	if (!g)
		return 1;
	group = (struct mem_cgroup *)g->group;
	g->id = BPF_CORE_READ(group, css.cgroup, kn, id);
	return 0;
}

/* Fills in the identifiers of the control groups of the first `nr` words. */
TELL_PROGRAM(tell_groups, tell_group)

/* Finds the mapping of an open file of ours, and its page if it has only the first. */
SEC("syscall")
int find(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct control *c = get_control();
	struct file **all;
	struct file *file = 0;
	void *first;

	if (!c)
		return 1;
	c->unit = bpf_core_type_size(struct page);
	c->mapping = 0;
	c->first = 0;
	all = BPF_CORE_READ(task, files, fdt, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), all + c->fd) || !file)
		return 0;
	c->mapping = (__u64)BPF_CORE_READ(file, f_mapping);
	first = BPF_CORE_READ(file, f_mapping, i_pages.xa_head);
	/* Internal entries of an xarray have a bit that no pointer has. */
	if (first && !((__u64)first & 3))
		c->first = (__u64)first;
	return 0;
}
