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

enum bpf_map_type { BPF_MAP_TYPE_ARRAY = 2 };
enum { BPF_F_MMAPABLE = 1U << 10 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct mm_struct {
	void *pgd;
	unsigned long total_vm;
	int map_count;
	void *notifier_subscriptions; /* with CONFIG_MMU_NOTIFIER */
};

struct task_struct {
	struct mm_struct *mm;
	__s32 pid;
	__s32 tgid;
};

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
