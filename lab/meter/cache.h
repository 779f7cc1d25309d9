/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which accesses reach DRAM?  A model of two cache levels: private per CPU, shared per node.
 *
 * Set-associative, write-back, write-allocate, second-chance replacement (a hand walks the set and passes
 * over a line once if that was touched again after its insertion).  A line evicted dirty from the private
 * level goes to the shared one, from there to DRAM.  Not modelled: coherence (a line that several CPUs
 * write stays in each one's cache), prefetching, instruction fetches, page-table walks, DMA.
 *
 * The shared level is used by several threads without locks: relaxed atomics make each entry whole, and a
 * lost race costs a wrong hit or miss, once.
 */
#ifndef VMP_METER_CACHE_H
#define VMP_METER_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

/*
 * Who accesses: the guest's number, and this bit for its kernel.  Called guest below.
 */
#define VMP_OF_KERNEL		64U
#define VMP_GUEST_OF(who)	((who) % VMP_OF_KERNEL)

struct vmp_cache {
	_Atomic uint64_t *entries;	/* sets * ways */
	_Atomic uint8_t *hands;		/* next victim of each set */
	uint64_t *recent;		/* copies of touched entries, to find them at once; NULL if shared */
	uint32_t sets;			/* a power of two */
	uint32_t ways;
};

struct vmp_hierarchy {
	struct vmp_cache *private_cache;
	struct vmp_cache *shared_cache;
};

/* A fetched or written-back line of DRAM, and the guest it counts for. */
struct vmp_dram_access {
	uint64_t line;
	uint32_t guest;
	bool write;
};

/* A private miss fetches one line, and writes back at most what its two insertions push out. */
#define VMP_DRAM_ACCESSES_MAX 3

/*
 * Make an empty cache, for several threads if @shared.
 * Return 0, or -EINVAL for a size that gives no power of two of sets, or -ENOMEM.
 */
int vmp_cache_init(struct vmp_cache *cache, const struct vmp_meter_level *level, bool shared);
void vmp_cache_deinit(struct vmp_cache *cache);
void vmp_cache_clear(struct vmp_cache *cache);

/* Look @line up; a hit is noted as touched, and as dirtied by @guest if it is a @store. */
bool vmp_cache_touch(struct vmp_cache *cache, uint64_t line, uint32_t guest, bool store);

/*
 * Do what follows a miss of vmp_cache_touch() in the private cache.
 * Return how many accesses of DRAM that made.
 */
unsigned int vmp_hierarchy_miss(struct vmp_hierarchy *hierarchy, uint64_t line, uint32_t guest, bool store,
				struct vmp_dram_access ret[VMP_DRAM_ACCESSES_MAX]);

#endif /* VMP_METER_CACHE_H */
