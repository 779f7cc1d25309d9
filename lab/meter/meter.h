/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the parts of the plugin share: the state of each vCPU, and of the whole meter. */
#ifndef VMP_METER_H
#define VMP_METER_H

#include <glib.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <qemu-plugin.h>

#include "abi.h"
#include "arguments.h"
#include "cache.h"
#include "fetches.h"
#include "page_counts.h"
#include "region.h"

/* What one CPU owes for its DRAM accesses (stall.c). */
struct vmp_stall {
	uint32_t node;		/* the CPU's, in the memory model */
	double debt_ns;		/* real time it has yet to sleep; negative: it slept too long */
	double unpublished_ns;	/* emulated time */
	double charged_ns;	/* emulated time; only grows */
	double outside_ns;	/* real time outside of guests, without what began then: */
	double outside_since_ns;	/* 0 = it is in a guest */
	uint64_t accesses[VMP_MODEL_NODES];	/* to each node of the model; only grows */
};

/* Private to the thread of one vCPU; the alignment keeps others off its lines. */
struct vmp_cpu {
	struct vmp_meter_cpu *row;
	struct vmp_hierarchy hierarchy;
	struct vmp_cache private_cache;
	struct vmp_stall stall;
	uint64_t published;	/* of the instruction count */
	uint32_t accesses;
	GByteArray *register_bytes;
} __attribute__((aligned(128)));

struct vmp_meter {
	qemu_plugin_id_t id;
	struct vmp_arguments arguments;
	struct vmp_meter_region *region;
	struct vmp_page_counts pages;
	struct vmp_backings backings;
	bool backings_known;
	struct qemu_plugin_register *rax;
	qemu_plugin_u64 instructions;
	pthread_mutex_t lock;	/* of the header and the identities */
	bool exit_learnt;	/* but code translated before may lack its callback */
	struct vmp_cpu cpus[VMP_METER_CPUS];
	struct vmp_cache shared_caches[VMP_METER_CPUS];
};

extern struct vmp_meter meter;

/* The one writer of @counter is the calling thread, so no locked instruction is needed. */
static inline void vmp_add(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, *counter + value, __ATOMIC_RELAXED);
}

static inline struct vmp_meter_guest *vmp_cpu_guest(const struct vmp_cpu *cpu)
{
	/* The region can be written from inside the emulated host: trust no index from it. */
	return &cpu->row->guests[cpu->row->guest % VMP_METER_GUESTS];
}

/* plugin.c: have everything translated anew, because what is instrumented has changed. */
void vmp_meter_retranslate(void);

/* accesses.c: count loads, stores, instructions and DRAM accesses. */
void vmp_accesses_instrument(struct qemu_plugin_insn *insn);
/* Count what happened since the last time for the guest that runs on @cpu. */
void vmp_cpu_publish(struct vmp_cpu *cpu);

/* fetches.c: count where the code is that is executed. */
void vmp_fetches_instrument(struct qemu_plugin_tb *tb);

/* identity.c: hear magic instructions, and notice which guest runs. */
void vmp_identity_instrument(struct qemu_plugin_insn *insn);

/* stall.c: emulated time. */
void vmp_stall_init(struct vmp_cpu *cpu, int32_t nid);
/* From now on @cpu is in a guest, or outside of all. */
void vmp_stall_enter(struct vmp_cpu *cpu, bool guest);
/* Begin with idle memory. */
void vmp_stall_restart(void);
/* Count an access of memory on @nid; @cpu pays for it if it @waits. */
void vmp_stall_charge(struct vmp_cpu *cpu, int32_t nid, bool waits);
void vmp_stall_publish(struct vmp_cpu *cpu);

#endif /* VMP_METER_H */
