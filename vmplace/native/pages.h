/*
 * What was seen of each page of one RAM range, by node: flat arrays, bit-sliced, 2M-first.
 *
 * Per page and node there are heat_bits bits "touched in this of the last heat_bits windows" and one bit
 * "wrote since an epoch began"; per page one byte: its node, how lately it moved, how lately it was written.
 *
 * A block of 512 pages that all have the same bits is one word: bit p is plane p, bits 48 to 55 the byte.
 * Where its pages differ the block has a slot in @detail: for each plane 8 words (a bit per page), then the
 * 512 bytes.  So a window is taken in with a few operations on 64 pages at once, at the speed of memory.
 *
 * Plane h * nodes + n: node n touched in window h, a ring whose newest is @newest.  Behind these: n wrote.
 */
#ifndef VMP_PAGES_H
#define VMP_PAGES_H

#include "core.h"

#define VMP_NODES_MAX		15
#define VMP_WORDS		8	/* of a plane of a block */
#define VMP_PLACE_SHIFT		48
#define VMP_PLACE_NODE		0x0f	/* all ones: not known */
#define VMP_PLACE_MOVED_SHIFT	4	/* 3: in this epoch; 2, 1: one or two epochs ago; 0: longer */
#define VMP_PLACE_WROTE_SHIFT	6	/* the same */

struct vmp_pages_state {
	uint64_t nodes;
	uint64_t heat_bits;
	uint64_t newest;
	uint64_t slots_used;	/* slots ever taken: [0, slots_used) */
	uint64_t free_count;	/* of these, on the free list */
	uint64_t merge_turn;
};

struct vmp_pages {
	struct vmp_buffer state_buffer, block_buffer, slot_buffer, touched_buffer, detail_buffer, free_buffer;
	struct vmp_pages_state *state;
	uint64_t *block;	/* one word per block, meaningful where it has no slot */
	int32_t *slot;		/* -1: the block's pages are alike */
	uint16_t *touched;	/* pages touched in this window, by block and node */
	uint64_t *detail;
	int32_t *free_slots;
	size_t blocks;
	size_t slot_words;
	unsigned int planes;
};

/* Take the parts, a tuple of six arrays in the order above; false with an exception set. */
bool vmp_pages_get(PyObject *parts, struct vmp_pages *ret);
void vmp_pages_release(struct vmp_pages *pages);

#define _cleanup_pages_ __attribute__((cleanup(vmp_pages_release)))

/* Return the detail of a block, which gets a slot if it had none. */
uint64_t *vmp_pages_split(struct vmp_pages *pages, size_t block);

/* Give the slot back if the block's pages are alike again. */
void vmp_pages_merge(struct vmp_pages *pages, size_t block);

static inline uint64_t *vmp_pages_detail(struct vmp_pages *pages, size_t block)
{
	return pages->detail + (size_t)pages->slot[block] * pages->slot_words;
}

static inline uint8_t *vmp_pages_places(const struct vmp_pages *pages, uint64_t *detail)
{
	return (uint8_t *)(detail + (size_t)pages->planes * VMP_WORDS);
}

static inline unsigned int vmp_heat_plane(const struct vmp_pages *pages, uint64_t node)
{
	return (unsigned int)(pages->state->newest * pages->state->nodes + node);
}

static inline unsigned int vmp_wrote_plane(const struct vmp_pages *pages, uint64_t node)
{
	return (unsigned int)(pages->state->heat_bits * pages->state->nodes + node);
}

#endif
