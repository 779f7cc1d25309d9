/* What is known: of some pages each by each, of all blocks counted. */
#include "pages.h"

#include <string.h>

/* Return the bits of word @word of plane @p, also where the block is one word. */
static uint64_t plane_word(struct vmp_pages *pages, size_t block, unsigned int p, size_t word)
{
	if (pages->slot[block] < 0)
		return pages->block[block] >> p & 1 ? UINT64_MAX : 0;
	return vmp_pages_detail(pages, block)[(size_t)p * VMP_WORDS + word];
}

static uint8_t place_at(struct vmp_pages *pages, size_t block, size_t in_block)
{
	if (pages->slot[block] < 0)
		return (uint8_t)(pages->block[block] >> VMP_PLACE_SHIFT);
	return vmp_pages_places(pages, vmp_pages_detail(pages, block))[in_block];
}

/* Heat of a page and node: a bit per window, the newest highest. */
static uint8_t heat_at(struct vmp_pages *pages, size_t block, size_t in_block, uint64_t node)
{
	uint64_t bits = pages->state->heat_bits;
	uint8_t ret = 0;

	for (uint64_t age = 0; age < bits; age++) {
		uint64_t ring = (pages->state->newest + bits - age) % bits;
		unsigned int p = (unsigned int)(ring * pages->state->nodes + node);

		ret |= (uint8_t)((plane_word(pages, block, p, in_block / 64) >> in_block % 64 & 1) << (bits - 1 - age));
	}
	return ret;
}

static void read_page(struct vmp_pages *pages, uint64_t page, uint8_t *heat, uint8_t *wrote, uint8_t *place)
{
	size_t block = page / VMP_PAGES_PER_HUGE, in_block = page % VMP_PAGES_PER_HUGE;

	for (uint64_t n = 0; n < pages->state->nodes; n++) {
		unsigned int p = vmp_wrote_plane(pages, n);

		heat[n] = heat_at(pages, block, in_block, n);
		wrote[n] = plane_word(pages, block, p, in_block / 64) >> in_block % 64 & 1;
	}
	*place = place_at(pages, block, in_block);
}

PyObject *vmp_pages_read(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer at = { 0 }, heat = { 0 }, wrote = { 0 }, place = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *at_object, *heat_object, *wrote_object, *place_object;

	if (!PyArg_ParseTuple(args, "OOOOO:pages_read", &parts, &at_object, &heat_object, &wrote_object,
			      &place_object) ||
	    !vmp_pages_get(parts, &pages) || !vmp_buffer_get(at_object, "pages", VMP_UINT64, false, &at) ||
	    !vmp_buffer_get(heat_object, "heat", VMP_UINT8, true, &heat) ||
	    !vmp_buffer_get(wrote_object, "written", VMP_UINT8, true, &wrote) ||
	    !vmp_buffer_get(place_object, "place", VMP_UINT8, true, &place) ||
	    !vmp_buffer_same_count(&at, "pages", &place, "place") ||
	    !vmp_buffer_same_count(&heat, "heat", &wrote, "written"))
		return NULL;
	if (heat.count != at.count * pages.state->nodes) {
		PyErr_SetString(PyExc_ValueError, "heat needs an item for each page and node");
		return NULL;
	}
	for (size_t i = 0; i < at.count; i++) {
		if (at.u64[i] >= pages.blocks * VMP_PAGES_PER_HUGE) {
			PyErr_SetString(PyExc_ValueError, "no such page");
			return NULL;
		}
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < at.count; i++)
		read_page(&pages, at.u64[i], heat.u8 + i * pages.state->nodes, wrote.u8 + i * pages.state->nodes,
			  place.u8 + i);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* Who uses 64 pages: masks. */
struct use {
	uint64_t by[VMP_NODES_MAX];
	uint64_t once, more, wrote;
};

static void collect_use(struct vmp_pages *pages, size_t block, size_t word, struct use *ret)
{
	memset(ret, 0, sizeof(*ret));
	for (uint64_t n = 0; n < pages->state->nodes; n++) {
		for (uint64_t h = 0; h < pages->state->heat_bits; h++)
			ret->by[n] |= plane_word(pages, block, (unsigned int)(h * pages->state->nodes + n), word);
		ret->more |= ret->once & ret->by[n];
		ret->once |= ret->by[n];
	}
}

/* A page counts as written until the marks of its last writes have aged away. */
static void collect_places(struct vmp_pages *pages, size_t block, size_t word, uint64_t *ret_wrote,
			   uint64_t on[VMP_NODES_MAX + 1])
{
	*ret_wrote = 0;
	memset(on, 0, (VMP_NODES_MAX + 1) * sizeof(*on));
	for (size_t i = 0; i < 64; i++) {
		uint8_t place = place_at(pages, block, word * 64 + i);

		on[place & VMP_PLACE_NODE] |= (uint64_t)1 << i;
		*ret_wrote |= (uint64_t)(place >> VMP_PLACE_WROTE_SHIFT != 0) << i;
	}
}

/*
 * Row: the node a page is on, or nodes = not known.  Column: the one node that uses it, or nodes = several
 * and nobody wrote, nodes + 1 = several and somebody wrote, nodes + 2 = nobody.
 */
static void count_word(struct vmp_pages *pages, const struct use *use, uint64_t wrote,
		       const uint64_t on[VMP_NODES_MAX + 1], uint64_t times, uint64_t *ret)
{
	uint64_t nodes = pages->state->nodes, columns = nodes + 3;

	for (uint64_t row = 0; row <= nodes; row++) {
		uint64_t here = on[row < nodes ? row : VMP_PLACE_NODE], *counts = ret + row * columns;

		if (!here)
			continue;
		for (uint64_t n = 0; n < nodes; n++)
			counts[n] += times * (uint64_t)__builtin_popcountll(here & use->by[n] & ~use->more);
		counts[nodes] += times * (uint64_t)__builtin_popcountll(here & use->more & ~wrote);
		counts[nodes + 1] += times * (uint64_t)__builtin_popcountll(here & use->more & wrote);
		counts[nodes + 2] += times * (uint64_t)__builtin_popcountll(here & ~use->once);
	}
}

static void count_block(struct vmp_pages *pages, size_t block, uint64_t *ret)
{
	size_t words = pages->slot[block] < 0 ? 1 : VMP_WORDS;

	for (size_t w = 0; w < words; w++) {
		uint64_t wrote, on[VMP_NODES_MAX + 1];
		struct use use;

		collect_use(pages, block, w, &use);
		collect_places(pages, block, w, &wrote, on);
		count_word(pages, &use, wrote, on, VMP_WORDS / words, ret);
	}
}

PyObject *vmp_pages_sharing(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer counts = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *counts_object;
	uint64_t nodes;

	if (!PyArg_ParseTuple(args, "OO:pages_sharing", &parts, &counts_object) || !vmp_pages_get(parts, &pages) ||
	    !vmp_buffer_get(counts_object, "counts", VMP_UINT64, true, &counts))
		return NULL;
	nodes = pages.state->nodes;
	if (counts.count != (nodes + 1) * (nodes + 3)) {
		PyErr_SetString(PyExc_ValueError, "counts needs nodes + 1 rows of nodes + 3");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t b = 0; b < pages.blocks; b++)
		count_block(&pages, b, counts.u64);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}
