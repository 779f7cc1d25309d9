/* What was seen in a window: bitmaps and records of a harvest, samples, hint faults; and ageing. */
#include "pages.h"

#include <string.h>

#define MERGE_TURNS 8	/* windows in which each block is looked at once, to merge it */
#define RECORD_WORDS 4	/* struct kvm_placement_record */

static inline void mark_written(uint64_t *block)
{
	*block |= (uint64_t)3 << (VMP_PLACE_SHIFT + VMP_PLACE_WROTE_SHIFT);
}

static inline void forget_plane(struct vmp_pages *pages, size_t block, unsigned int first_plane)
{
	uint64_t mask = (((uint64_t)1 << pages->state->nodes) - 1) << first_plane;
	size_t words = pages->state->nodes * VMP_WORDS;

	if (pages->slot[block] < 0)
		pages->block[block] &= ~mask;
	else
		memset(vmp_pages_detail(pages, block) + (size_t)first_plane * VMP_WORDS, 0, words * sizeof(uint64_t));
}

static void turn_ring(struct vmp_pages *pages)
{
	pages->state->merge_turn = (pages->state->merge_turn + 1) % MERGE_TURNS;
	pages->state->newest = (pages->state->newest + 1) % pages->state->heat_bits;
}

static inline void begin_block(struct vmp_pages *pages, size_t block)
{
	size_t nodes = pages->state->nodes;

	if (block % MERGE_TURNS == pages->state->merge_turn)
		vmp_pages_merge(pages, block);
	forget_plane(pages, block, vmp_heat_plane(pages, 0));
	memset(pages->touched + block * nodes, 0, nodes * sizeof(*pages->touched));
}

PyObject *vmp_pages_begin(PyObject *module, PyObject *args)
{
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts;

	if (!PyArg_ParseTuple(args, "O:pages_begin", &parts) || !vmp_pages_get(parts, &pages))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	turn_ring(&pages);
	for (size_t b = 0; b < pages.blocks; b++)
		begin_block(&pages, b);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static uint64_t aged(uint64_t place)
{
	uint64_t moved = place >> VMP_PLACE_MOVED_SHIFT & 3, wrote = place >> VMP_PLACE_WROTE_SHIFT & 3;

	return (place & VMP_PLACE_NODE) | (moved - !!moved) << VMP_PLACE_MOVED_SHIFT |
	       (wrote - !!wrote) << VMP_PLACE_WROTE_SHIFT;
}

static void age_block(struct vmp_pages *pages, size_t block)
{
	const uint64_t place_mask = (uint64_t)0xff << VMP_PLACE_SHIFT;
	uint64_t *word = &pages->block[block];
	uint8_t *places;

	if (pages->slot[block] < 0) {
		*word = (*word & ~place_mask) | aged(*word >> VMP_PLACE_SHIFT & 0xff) << VMP_PLACE_SHIFT;
		return;
	}
	places = vmp_pages_places(pages, vmp_pages_detail(pages, block));
	for (size_t i = 0; i < VMP_PAGES_PER_HUGE; i++)
		places[i] = (uint8_t)aged(places[i]);
}

PyObject *vmp_pages_epoch(PyObject *module, PyObject *args)
{
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts;

	if (!PyArg_ParseTuple(args, "O:pages_epoch", &parts) || !vmp_pages_get(parts, &pages))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	for (size_t b = 0; b < pages.blocks; b++) {
		forget_plane(&pages, b, vmp_wrote_plane(&pages, 0));
		age_block(&pages, b);
	}
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* All pages of a block that are alike were touched, and perhaps written; they stay alike. */
static inline void touch_whole(struct vmp_pages *pages, size_t block, uint64_t node, bool wrote)
{
	pages->block[block] |= (uint64_t)1 << vmp_heat_plane(pages, node);
	pages->touched[block * pages->state->nodes + node] = VMP_PAGES_PER_HUGE;
	if (!wrote)
		return;
	pages->block[block] |= (uint64_t)1 << vmp_wrote_plane(pages, node);
	mark_written(&pages->block[block]);
}

/* Set bits 6 and 7 of the bytes of the pages in @mask. */
static inline void mark_places(uint8_t *places, uint64_t mask)
{
	for (; mask; mask &= mask - 1)
		places[__builtin_ctzll(mask)] |= 3 << VMP_PLACE_WROTE_SHIFT;
}

static inline void touch_word(struct vmp_pages *pages, size_t block, uint64_t *detail, size_t word, uint64_t node,
		       uint64_t accessed, uint64_t wrote)
{
	uint64_t *heat = &detail[vmp_heat_plane(pages, node) * VMP_WORDS + word];
	uint64_t *writes = &detail[vmp_wrote_plane(pages, node) * VMP_WORDS + word];
	uint64_t news;

	/* A page that was written was touched, whatever the source says. */
	accessed |= wrote;
	pages->touched[block * pages->state->nodes + node] += (uint16_t)__builtin_popcountll(accessed & ~*heat);
	*heat |= accessed;
	/* What wrote in this epoch already has its mark. */
	news = wrote & ~*writes;
	*writes |= wrote;
	if (news)
		mark_places(vmp_pages_places(pages, detail) + word * 64, news);
}

/* Return whether a block whose pages are alike tells already what is seen of some of them. */
static bool is_known(const struct vmp_pages *pages, size_t block, uint64_t node, bool wrote)
{
	uint64_t word = pages->block[block];

	return pages->slot[block] < 0 && word >> vmp_heat_plane(pages, node) & 1 &&
	       (!wrote || word >> vmp_wrote_plane(pages, node) & 1);
}

static inline bool are_all(const uint64_t *words, uint64_t value)
{
	uint64_t differ = 0;

	for (int i = 0; i < VMP_WORDS; i++)
		differ |= words[i] ^ value;
	return !differ;
}

static inline void touch_block(struct vmp_pages *pages, size_t block, uint64_t node, const uint64_t *accessed,
			const uint64_t *wrote)
{
	bool clean = are_all(wrote, 0);
	uint64_t *detail;

	if (clean && are_all(accessed, 0))
		return;
	if (pages->slot[block] < 0 && are_all(accessed, UINT64_MAX) && (clean || are_all(wrote, UINT64_MAX))) {
		touch_whole(pages, block, node, !clean);
		return;
	}
	detail = vmp_pages_split(pages, block);
	for (size_t i = 0; i < VMP_WORDS; i++)
		touch_word(pages, block, detail, i, node, accessed[i], wrote[i]);
}

/*
 * One sweep for all nodes, because the state of a block lies together.  Wide registers, and above all a
 * popcount that is one instruction, make it twice as fast; which ones there are is found out at run time.
 */
__attribute__((target_clones("avx2", "default")))
static void absorb_bitmaps(struct vmp_pages *pages, const uint64_t *accessed, const uint64_t *wrote, bool begin)
{
	size_t nodes = pages->state->nodes, stride = pages->blocks * VMP_WORDS;

	if (begin)
		turn_ring(pages);
	for (size_t b = 0; b < pages->blocks; b++) {
		if (begin)
			begin_block(pages, b);
		for (size_t n = 0; n < nodes; n++)
			touch_block(pages, b, n, accessed + n * stride + b * VMP_WORDS, wrote + n * stride + b * VMP_WORDS);
	}
}

PyObject *vmp_pages_absorb(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer accessed = { 0 }, wrote = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *accessed_object, *wrote_object;
	int begin;

	if (!PyArg_ParseTuple(args, "OOOp:pages_absorb", &parts, &accessed_object, &wrote_object, &begin) ||
	    !vmp_pages_get(parts, &pages) ||
	    !vmp_buffer_get(accessed_object, "accessed", VMP_UINT64, false, &accessed) ||
	    !vmp_buffer_get(wrote_object, "written", VMP_UINT64, false, &wrote) ||
	    !vmp_buffer_same_count(&accessed, "accessed", &wrote, "written"))
		return NULL;
	if (accessed.count != pages.state->nodes * pages.blocks * VMP_WORDS) {
		PyErr_SetString(PyExc_ValueError, "accessed needs a bit for each node and each page of the blocks");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	absorb_bitmaps(&pages, accessed.u64, wrote.u64, begin);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static void touch_huge(struct vmp_pages *pages, size_t block, uint64_t node, bool wrote)
{
	uint64_t *detail;

	if (pages->slot[block] < 0) {
		touch_whole(pages, block, node, wrote);
		return;
	}
	detail = vmp_pages_detail(pages, block);
	for (size_t i = 0; i < VMP_WORDS; i++)
		touch_word(pages, block, detail, i, node, UINT64_MAX, wrote ? UINT64_MAX : 0);
}

/* Absorb one record of the kernel's harvest; false if it is of another range or node. */
static bool absorb_record(struct vmp_pages *pages, const uint64_t *record, uint64_t base_gfn,
			  const struct vmp_buffer *node_of_nid)
{
	uint32_t nid = (uint32_t)record[1], level = (uint32_t)(record[1] >> 32) & 0xffff;
	uint64_t page = record[0] - base_gfn, end, node;
	size_t block = page / VMP_PAGES_PER_HUGE;

	if (record[0] < base_gfn || block >= pages->blocks || nid >= node_of_nid->count ||
	    node_of_nid->i32[nid] < 0 || (uint64_t)node_of_nid->i32[nid] >= pages->state->nodes)
		return false;
	node = (uint64_t)node_of_nid->i32[nid];
	if (level == 1) {
		if ((record[2] | record[3]) && !is_known(pages, block, node, record[3]))
			touch_word(pages, block, vmp_pages_split(pages, block), page / 64 % VMP_WORDS, node, record[2],
				   record[3]);
		return true;
	}
	end = block + (level == 2 ? 1 : VMP_PAGES_PER_HUGE);
	for (; (record[2] | record[3]) & 1 && block < end && block < pages->blocks; block++)
		touch_huge(pages, block, node, record[3] & 1);
	return true;
}

PyObject *vmp_pages_records(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer records = { 0 }, node_of_nid = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *records_object, *nids_object;
	unsigned long long base_gfn;
	long long ignored = 0;

	if (!PyArg_ParseTuple(args, "OOKO:pages_records", &parts, &records_object, &base_gfn, &nids_object) ||
	    !vmp_pages_get(parts, &pages) ||
	    !vmp_buffer_get(records_object, "records", VMP_UINT64, false, &records) ||
	    !vmp_buffer_get(nids_object, "node_of_nid", VMP_INT32, false, &node_of_nid))
		return NULL;
	if (records.count % RECORD_WORDS || base_gfn % VMP_PAGES_PER_HUGE) {
		PyErr_SetString(PyExc_ValueError, "need whole records, and a base at a multiple of 2 MiB");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < records.count; i += RECORD_WORDS)
		ignored += !absorb_record(&pages, records.u64 + i, base_gfn, &node_of_nid);
	Py_END_ALLOW_THREADS
	return PyLong_FromLongLong(ignored);
}

PyObject *vmp_pages_samples(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer at = { 0 }, nodes = { 0 }, wrote = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *at_object, *nodes_object, *wrote_object;
	long long ignored = 0;

	if (!PyArg_ParseTuple(args, "OOOO:pages_samples", &parts, &at_object, &nodes_object, &wrote_object) ||
	    !vmp_pages_get(parts, &pages) || !vmp_buffer_get(at_object, "pages", VMP_UINT64, false, &at) ||
	    !vmp_buffer_get(nodes_object, "nodes", VMP_INT32, false, &nodes) ||
	    !vmp_buffer_get(wrote_object, "written", VMP_UINT8, false, &wrote) ||
	    !vmp_buffer_same_count(&at, "pages", &nodes, "nodes") ||
	    !vmp_buffer_same_count(&at, "pages", &wrote, "written"))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < at.count; i++) {
		size_t block = at.u64[i] / VMP_PAGES_PER_HUGE, in_block = at.u64[i] % VMP_PAGES_PER_HUGE;
		uint64_t bit = (uint64_t)1 << in_block % 64;

		if (block >= pages.blocks || nodes.i32[i] < 0 || (uint64_t)nodes.i32[i] >= pages.state->nodes) {
			ignored++;
			continue;
		}
		if (is_known(&pages, block, (uint64_t)nodes.i32[i], wrote.u8[i]))
			continue;
		touch_word(&pages, block, vmp_pages_split(&pages, block), in_block / 64, (uint64_t)nodes.i32[i], bit,
			   wrote.u8[i] ? bit : 0);
	}
	Py_END_ALLOW_THREADS
	return PyLong_FromLongLong(ignored);
}
