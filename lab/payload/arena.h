/*
 * Memory whose every byte can be computed, so that loss, exchange and ageing show.
 *
 * The arena is an array of 4 KiB pages of 64-byte lines.  A line's key is a
 * hash of (seed, line number); its eight words follow from the key:
 *
 *   word 0      high half: high half of the key; low half: writes so far (from 0)
 *   words 1..7  key + i * an odd constant
 *
 * A page that is zeroed, torn or exchanged with another shows in the keys.  A
 * page that went back to an older copy shows in the write counts: their sum
 * over a page must be what a table outside the arena says.
 */
#ifndef VMP_ARENA_H
#define VMP_ARENA_H

#include <stdatomic.h>
#include <stdint.h>

#define VMP_LINE_WORDS 8
#define VMP_PAGE_LINES 64

struct vmp_line {
	_Atomic uint32_t writes;
	uint32_t key_high;
	uint64_t body[VMP_LINE_WORDS - 1];
};

struct vmp_arena {
	struct vmp_line *lines;
	uint64_t npages;
	uint64_t seed;
	_Atomic uint32_t *page_writes;
	_Atomic uint8_t *page_bad;
	_Atomic uint64_t bad_pages;
	_Atomic uint64_t first_bad_page;
};

/* Map an arena of @mib MiB, unpopulated.  Returns 0 or -errno. */
int vmp_arena_init(struct vmp_arena *arena, uint64_t mib, uint64_t seed, int huge_pages);

/* Write the first content of the pages [first, end); this faults them in. */
void vmp_arena_populate(struct vmp_arena *arena, uint64_t first, uint64_t end);

/* Touch one line; a read checks the line's key, a write counts itself. */
void vmp_arena_read(struct vmp_arena *arena, uint64_t line);
void vmp_arena_write(struct vmp_arena *arena, uint64_t line);

/*
 * Check every byte of a page.  @writers is how many threads may be writing at
 * this moment; 0 makes the check exact.  A bad page is recorded once.
 */
void vmp_arena_verify_page(struct vmp_arena *arena, uint64_t page, uint32_t writers);

#endif
