/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The few kernel types that page_table.bpf.c uses, with only the members it reads. CO-RE finds the
 * real offsets in the running kernel's BTF, so one object serves every kernel and no machine's
 * vmlinux.h is checked in.
 */
#ifndef ISOTHERM_KERNEL_TYPES_H
#define ISOTHERM_KERNEL_TYPES_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_F_MMAPABLE = 1U << 10 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct mm_struct {
	void *pgd;
	unsigned long total_vm;
	int map_count;
	unsigned long locked_vm;
	void *notifier_subscriptions; /* with CONFIG_MMU_NOTIFIER */
};

struct files_struct;

struct task_struct {
	struct mm_struct *mm;
	struct files_struct *files;
	__s32 pid;
	__s32 tgid;
	__u64 self_exec_id;
	struct task_struct *real_parent;
};

struct vm_fault {
	unsigned long address;
};

struct anon_vma;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct anon_vma *anon_vma;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct pt_regs {
#ifdef __TARGET_ARCH_arm64
	unsigned long regs[31];
	unsigned long sp;
	unsigned long pc;
#else
	unsigned long bp;
	unsigned long ip;
	unsigned long sp;
#endif
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};

/* Types of the page cache, for page_cache.bpf.c. */

typedef struct {
	int counter;
} atomic_t;

struct page {
	__u32 page_type;
	unsigned long private;
	unsigned char compound_order; /* in the second page of a compound page; until 6.0 */
};

struct address_space;

struct folio {
	struct address_space *mapping;
	unsigned long index;
	atomic_t _mapcount;
	unsigned long memcg_data;     /* with CONFIG_MEMCG */
	unsigned char _folio_order;   /* 6.1 to 6.5; since then in the low byte of the second page's flags */
	atomic_t _large_mapcount;     /* since 6.10 */
};

enum pageflags {
	PG_locked,
	PG_writeback,
	PG_referenced,
	PG_dirty,
	PG_lru,
	PG_head,
	PG_active,
	PG_workingset,
	PG_swapbacked,
	PG_unevictable,
};

enum pagetype { PGTY_buddy };

struct xarray {
	void *xa_head;
};

struct xa_node {
	unsigned char shift;
	void *slots[64];
};

struct address_space {
	struct inode *host;
	struct xarray i_pages;
	unsigned long nrpages;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	union {
		struct hlist_node d_alias;
	} d_u;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
	struct dentry *s_root;
};

struct inode {
	unsigned short i_mode;
	unsigned int i_nlink;
	__u32 i_rdev;
	__s64 i_size;
	__u32 i_generation;
	unsigned long i_ino;
	struct super_block *i_sb;
	struct hlist_head i_dentry;
};

struct file {
	struct address_space *f_mapping;
};

struct fdtable {
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
};

#pragma clang attribute pop

#endif
