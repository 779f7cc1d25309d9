/* Where are the pages, which of them moved, and what is known of them altogether? */
#include "pages.h"

#include <string.h>

static uint8_t placed(uint8_t place, uint32_t node)
{
	return (uint8_t)((place & ~VMP_PLACE_NODE) | (node < VMP_PLACE_NODE ? node : VMP_PLACE_NODE));
}

static uint8_t place_of(struct vmp_pages *pages, uint64_t page)
{
	size_t block = page / VMP_PAGES_PER_HUGE;

	if (pages->slot[block] < 0)
		return (uint8_t)(pages->block[block] >> VMP_PLACE_SHIFT);
	return vmp_pages_places(pages, vmp_pages_detail(pages, block))[page % VMP_PAGES_PER_HUGE];
}

static void set_place(struct vmp_pages *pages, uint64_t page, uint8_t place)
{
	size_t block = page / VMP_PAGES_PER_HUGE;

	if (place_of(pages, page) == place)
		return;
	vmp_pages_places(pages, vmp_pages_split(pages, block))[page % VMP_PAGES_PER_HUGE] = place;
}

static bool is_one_value(const uint8_t *values, size_t count)
{
	return !memcmp(values, values + 1, count - 1);
}

static void place_block(struct vmp_pages *pages, size_t block, const uint8_t *nodes)
{
	uint64_t *word = &pages->block[block];

	if (pages->slot[block] < 0 && is_one_value(nodes, VMP_PAGES_PER_HUGE)) {
		uint64_t place = placed((uint8_t)(*word >> VMP_PLACE_SHIFT), nodes[0]);

		*word = (*word & ~((uint64_t)0xff << VMP_PLACE_SHIFT)) | place << VMP_PLACE_SHIFT;
		return;
	}
	for (size_t i = 0; i < VMP_PAGES_PER_HUGE; i++) {
		uint64_t page = block * VMP_PAGES_PER_HUGE + i;

		set_place(pages, page, placed(place_of(pages, page), nodes[i]));
	}
}

PyObject *vmp_pages_place(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer nodes = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *nodes_object;

	if (!PyArg_ParseTuple(args, "OO:pages_place", &parts, &nodes_object) || !vmp_pages_get(parts, &pages) ||
	    !vmp_buffer_get(nodes_object, "nodes", VMP_UINT8, false, &nodes))
		return NULL;
	if (nodes.count != pages.blocks * VMP_PAGES_PER_HUGE) {
		PyErr_SetString(PyExc_ValueError, "need a node for each page of the blocks");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t b = 0; b < pages.blocks; b++)
		place_block(&pages, b, nodes.u8 + b * VMP_PAGES_PER_HUGE);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *vmp_pages_moved(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer at = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *at_object;
	unsigned int node;
	long long ignored = 0;

	if (!PyArg_ParseTuple(args, "OOI:pages_moved", &parts, &at_object, &node) || !vmp_pages_get(parts, &pages) ||
	    !vmp_buffer_get(at_object, "pages", VMP_UINT64, false, &at))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < at.count; i++) {
		if (at.u64[i] >= pages.blocks * VMP_PAGES_PER_HUGE) {
			ignored++;
			continue;
		}
		set_place(&pages, at.u64[i], placed(place_of(&pages, at.u64[i]), node) | 3 << VMP_PLACE_MOVED_SHIFT);
	}
	Py_END_ALLOW_THREADS
	return PyLong_FromLongLong(ignored);
}

/* Whole blocks; one whose pages were alike stays so. */
PyObject *vmp_pages_moved_blocks(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer at = { 0 };
	_cleanup_pages_ struct vmp_pages pages = { 0 };
	PyObject *parts, *at_object;
	unsigned int node;

	if (!PyArg_ParseTuple(args, "OOI:pages_moved_blocks", &parts, &at_object, &node) ||
	    !vmp_pages_get(parts, &pages) || !vmp_buffer_get(at_object, "blocks", VMP_UINT64, false, &at))
		return NULL;
	for (size_t i = 0; i < at.count; i++) {
		size_t block = at.u64[i];

		if (block >= pages.blocks) {
			PyErr_SetString(PyExc_ValueError, "no such block");
			return NULL;
		}
		if (pages.slot[block] < 0) {
			uint8_t place = placed((uint8_t)(pages.block[block] >> VMP_PLACE_SHIFT), node);

			place |= 3 << VMP_PLACE_MOVED_SHIFT;
			pages.block[block] &= ~((uint64_t)0xff << VMP_PLACE_SHIFT);
			pages.block[block] |= (uint64_t)place << VMP_PLACE_SHIFT;
			continue;
		}
		for (uint64_t page = block * VMP_PAGES_PER_HUGE; page < (block + 1) * VMP_PAGES_PER_HUGE; page++)
			set_place(&pages, page, placed(place_of(&pages, page), node) | 3 << VMP_PLACE_MOVED_SHIFT);
	}
	Py_RETURN_NONE;
}
