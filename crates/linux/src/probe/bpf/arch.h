/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Bits of page-table entries, and registers: what differs between processors. User space's part is in ../../arch.rs.
 *
 * x86-64: Intel SDM vol. 3A, 4.5; arch/x86/include/asm/pgtable_types.h.
 * arm64: Arm Architecture Reference Manual, D8.3; arch/arm64/include/asm/pgtable-hwdef.h.
 */
#ifndef ISOTHERM_ARCH_H
#define ISOTHERM_ARCH_H

#ifdef __TARGET_ARCH_arm64

#define ENTRY_PRESENT 0x1ULL
#define ENTRY_ACCESSED (1ULL << 10)
#define ENTRY_SPECIAL (1ULL << 56)
/* Entries that may map memory in one piece: PAGES_PER_RUN of page_table.bpf.c. */
#define CONTIGUOUS 16ULL
/* Above the lowest level: a huge page, no table. */
#define IS_LEAF(entry) (!((entry) & 2))
/* Frame bits of an entry that only the processor treats as absent. */
#define ABSENT_FRAME(entry) (entry)

/* struct user_pt_regs in struct bpf_perf_event_data, in words. */
#define PERF_REGISTERS 34
#define REGISTER_IP pc
#define REGISTER_SP sp
#define REGISTER_FP regs[29]
#define REGISTER_LR regs[30]

#else

#define ENTRY_PRESENT 0x001ULL
#define ENTRY_ACCESSED 0x020ULL
#define ENTRY_SPECIAL 0x200ULL
#define IS_LEAF(entry) ((entry) & 0x080ULL) /* PSE */
/* The kernel inverts them (L1TF). */
#define ABSENT_FRAME(entry) (~(entry))

#define PERF_REGISTERS 21
#define REGISTER_IP ip
#define REGISTER_SP sp
#define REGISTER_FP bp

#endif

#endif
