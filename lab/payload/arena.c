#include "arena.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NO_PAGE UINT64_MAX

static inline uint64_t line_key(uint64_t seed, uint64_t line)
{
	/* splitmix64's finalizer: neighbouring lines get unrelated keys. */
	uint64_t key = seed * 0x9e3779b97f4a7c15ULL + line;

	key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
	key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
	return key ^ (key >> 31);
}

static inline uint64_t body_word(uint64_t key, unsigned int i)
{
	return key + i * 0x9e3779b97f4a7c15ULL;
}

int vmp_arena_init(struct vmp_arena *arena, uint64_t mib, uint64_t seed, int huge_pages)
{
	size_t bytes = mib << 20;

	arena->seed = seed;
	arena->npages = bytes >> 12;
	arena->first_bad_page = NO_PAGE;
	arena->page_writes = calloc(arena->npages, sizeof(*arena->page_writes));
	arena->page_bad = calloc(arena->npages, sizeof(*arena->page_bad));
	if (!arena->page_writes || !arena->page_bad)
		return -ENOMEM;
	arena->lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena->lines == MAP_FAILED)
		return -errno;
	/* Without THP in the kernel this fails, and small pages are what there is. */
	madvise(arena->lines, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return 0;
}

void vmp_arena_populate(struct vmp_arena *arena, uint64_t first, uint64_t end)
{
	for (uint64_t i = first * VMP_PAGE_LINES; i < end * VMP_PAGE_LINES; i++) {
		struct vmp_line *line = &arena->lines[i];
		uint64_t key = line_key(arena->seed, i);

		atomic_store_explicit(&line->writes, 0, memory_order_relaxed);
		line->key_high = (uint32_t)(key >> 32);
		for (unsigned int w = 0; w < VMP_LINE_WORDS - 1; w++)
			line->body[w] = body_word(key, w + 1);
	}
}

static void record_bad_page(struct vmp_arena *arena, uint64_t page)
{
	uint64_t none = NO_PAGE;

	if (atomic_exchange(&arena->page_bad[page], 1))
		return;
	atomic_compare_exchange_strong(&arena->first_bad_page, &none, page);
	atomic_fetch_add(&arena->bad_pages, 1);
}

static inline void check_key(struct vmp_arena *arena, uint64_t i, uint32_t key_high)
{
	if (key_high != (uint32_t)(line_key(arena->seed, i) >> 32))
		record_bad_page(arena, i / VMP_PAGE_LINES);
}

void vmp_arena_read(struct vmp_arena *arena, uint64_t line)
{
	check_key(arena, line, *(volatile uint32_t *)&arena->lines[line].key_high);
}

void vmp_arena_write(struct vmp_arena *arena, uint64_t line)
{
	atomic_fetch_add_explicit(&arena->lines[line].writes, 1, memory_order_relaxed);
	/*
	 * The release orders the page's count after the line's: whoever reads the
	 * count first and the lines then never sees fewer writes in the lines.
	 */
	atomic_fetch_add_explicit(&arena->page_writes[line / VMP_PAGE_LINES], 1,
				  memory_order_release);
}

static int is_body_intact(const struct vmp_line *line, uint64_t key)
{
	uint64_t difference = line->key_high ^ (key >> 32);

	for (unsigned int w = 0; w < VMP_LINE_WORDS - 1; w++)
		difference |= line->body[w] ^ body_word(key, w + 1);
	return !difference;
}

void vmp_arena_verify_page(struct vmp_arena *arena, uint64_t page, uint32_t writers)
{
	uint32_t before = atomic_load_explicit(&arena->page_writes[page], memory_order_acquire);
	uint32_t writes = 0, after;
	int intact = 1;

	for (uint64_t i = page * VMP_PAGE_LINES; i < (page + 1) * VMP_PAGE_LINES; i++) {
		writes += atomic_load_explicit(&arena->lines[i].writes, memory_order_acquire);
		intact &= is_body_intact(&arena->lines[i], line_key(arena->seed, i));
	}
	after = atomic_load_explicit(&arena->page_writes[page], memory_order_acquire);
	/* Each writer may have counted in the line and not yet in the table. */
	if (!intact || (uint32_t)(writes - before) > (uint32_t)(after - before) + writers)
		record_bad_page(arena, page);
}
