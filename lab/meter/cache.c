/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "cache.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RECENT 256

/*
 * An entry: line + 1 from bit 9 (so that 0 is an empty one), who dirtied it from bit 2 (cache.h), the two
 * flags below it.
 */
#define ENTRY_TOUCHED	1ULL
#define ENTRY_DIRTY	2ULL
#define ENTRY_LINE_SHIFT 9
#define ENTRY_GUEST(e)	((uint32_t)((e) >> 2 & 127))
#define ENTRY_LINE(e)	(((e) >> ENTRY_LINE_SHIFT) - 1)

static uint64_t entry_of(uint64_t line, uint32_t guest, bool dirty)
{
	return (line + 1) << ENTRY_LINE_SHIFT | (dirty ? (uint64_t)guest << 2 | ENTRY_DIRTY : 0);
}

int vmp_cache_init(struct vmp_cache *cache, const struct vmp_meter_level *level, bool shared)
{
	uint32_t ways = level->ways;
	uint32_t sets = ways ? level->bytes / VMP_METER_LINE_BYTES / ways : 0;

	if (!sets || sets & (sets - 1) || ways > UINT8_MAX)
		return -EINVAL;

	cache->sets = sets;
	cache->ways = ways;
	/* Sets begin on real cache lines, so that looking through eight ways costs one. */
	cache->entries = aligned_alloc(64, ((size_t)sets * ways * sizeof(*cache->entries) + 63) & ~63UL);
	cache->hands = calloc(sets, sizeof(*cache->hands));
	cache->recent = shared ? NULL : calloc(RECENT, sizeof(*cache->recent));
	if (!cache->entries || !cache->hands || (!shared && !cache->recent)) {
		vmp_cache_deinit(cache);
		return -ENOMEM;
	}

	vmp_cache_clear(cache);
	return 0;
}

void vmp_cache_deinit(struct vmp_cache *cache)
{
	free(cache->entries);
	free(cache->hands);
	free(cache->recent);
	cache->entries = NULL;
	cache->hands = NULL;
	cache->recent = NULL;
}

void vmp_cache_clear(struct vmp_cache *cache)
{
	memset((void *)cache->entries, 0, (size_t)cache->sets * cache->ways * sizeof(*cache->entries));
	memset((void *)cache->hands, 0, cache->sets * sizeof(*cache->hands));
	if (cache->recent)
		memset(cache->recent, 0, RECENT * sizeof(*cache->recent));
}

static _Atomic uint64_t *set_of(const struct vmp_cache *cache, uint64_t line)
{
	return &cache->entries[(line & (cache->sets - 1)) * cache->ways];
}

/* Is this access sure to hit and to change nothing?  Most are. */
static bool is_recent(const struct vmp_cache *cache, uint64_t line, uint32_t guest, bool store)
{
	uint64_t entry = cache->recent ? cache->recent[line % RECENT] : 0;

	return store ? entry == (entry_of(line, guest, true) | ENTRY_TOUCHED) : entry >> ENTRY_LINE_SHIFT == line + 1;
}

/* Keep a copy of an entry that is touched, so that nothing more can happen to it by being touched. */
static void note_recent(struct vmp_cache *cache, uint64_t entry)
{
	if (cache->recent)
		cache->recent[ENTRY_LINE(entry) % RECENT] = entry;
}

/* The entry is touched no more: to touch it will make a difference again. */
static void forget_recent(struct vmp_cache *cache, uint64_t entry)
{
	if (cache->recent && cache->recent[ENTRY_LINE(entry) % RECENT] >> ENTRY_LINE_SHIFT == entry >> ENTRY_LINE_SHIFT)
		cache->recent[ENTRY_LINE(entry) % RECENT] = 0;
}

bool vmp_cache_touch(struct vmp_cache *cache, uint64_t line, uint32_t guest, bool store)
{
	_Atomic uint64_t *set = set_of(cache, line);

	if (is_recent(cache, line, guest, store))
		return true;

	for (uint32_t way = 0; way < cache->ways; way++) {
		uint64_t entry = atomic_load_explicit(&set[way], memory_order_relaxed);
		uint64_t touched;

		if (entry >> ENTRY_LINE_SHIFT != line + 1)
			continue;

		touched = (store ? entry_of(line, guest, true) : entry) | ENTRY_TOUCHED;
		if (touched != entry)
			atomic_store_explicit(&set[way], touched, memory_order_relaxed);
		note_recent(cache, touched);
		return true;
	}

	return false;
}

/* Put @entry in the place of the hand's choice and return what was there, 0 = nothing. */
static uint64_t cache_insert(struct vmp_cache *cache, uint64_t entry)
{
	_Atomic uint64_t *set = set_of(cache, ENTRY_LINE(entry));
	_Atomic uint8_t *hand = &cache->hands[ENTRY_LINE(entry) & (cache->sets - 1)];
	uint8_t way = atomic_load_explicit(hand, memory_order_relaxed);
	uint64_t victim;

	/* Bounded, because other threads may go on touching what the hand passes. */
	for (uint32_t passed = 0; passed < 2 * cache->ways; passed++) {
		victim = atomic_load_explicit(&set[way], memory_order_relaxed);
		if (!(victim & ENTRY_TOUCHED))
			break;
		atomic_store_explicit(&set[way], victim & ~ENTRY_TOUCHED, memory_order_relaxed);
		forget_recent(cache, victim);
		way = (uint8_t)((way + 1U) % cache->ways);
	}

	victim = atomic_exchange_explicit(&set[way], entry, memory_order_relaxed);
	atomic_store_explicit(hand, (uint8_t)((way + 1U) % cache->ways), memory_order_relaxed);
	return victim;
}

/* Insert @entry into the level next to DRAM; return 1 with the line that had to be written back, else 0. */
static unsigned int insert_shared(struct vmp_cache *cache, uint64_t entry, struct vmp_dram_access *ret)
{
	uint64_t victim = cache_insert(cache, entry);

	if (!(victim & ENTRY_DIRTY))
		return 0;

	*ret = (struct vmp_dram_access) {
		.line = ENTRY_LINE(victim), .guest = ENTRY_GUEST(victim), .write = true,
	};
	return 1;
}

unsigned int vmp_hierarchy_miss(struct vmp_hierarchy *hierarchy, uint64_t line, uint32_t guest, bool store,
				struct vmp_dram_access ret[VMP_DRAM_ACCESSES_MAX])
{
	struct vmp_cache *shared = hierarchy->shared_cache;
	uint64_t victim = cache_insert(hierarchy->private_cache, entry_of(line, guest, store));
	unsigned int count = 0;

	if (victim & ENTRY_DIRTY && !vmp_cache_touch(shared, ENTRY_LINE(victim), ENTRY_GUEST(victim), true))
		count += insert_shared(shared, entry_of(ENTRY_LINE(victim), ENTRY_GUEST(victim), true), &ret[count]);

	if (vmp_cache_touch(shared, line, guest, false))
		return count;

	ret[count++] = (struct vmp_dram_access) { .line = line, .guest = guest };
	count += insert_shared(shared, entry_of(line, guest, false), &ret[count]);
	return count;
}
