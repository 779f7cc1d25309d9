/* How is a block's state kept: as one word while its pages are alike, in a slot when they differ? */
#include "pages.h"

#include <string.h>

static bool take_arrays(PyObject *parts, struct vmp_pages *ret)
{
	return vmp_buffer_get(PyTuple_GetItem(parts, 0), "state", VMP_UINT64, true, &ret->state_buffer) &&
	       vmp_buffer_get(PyTuple_GetItem(parts, 1), "blocks", VMP_UINT64, true, &ret->block_buffer) &&
	       vmp_buffer_get(PyTuple_GetItem(parts, 2), "slots", VMP_INT32, true, &ret->slot_buffer) &&
	       vmp_buffer_get(PyTuple_GetItem(parts, 3), "touched", VMP_UINT16, true, &ret->touched_buffer) &&
	       vmp_buffer_get(PyTuple_GetItem(parts, 4), "detail", VMP_UINT64, true, &ret->detail_buffer) &&
	       vmp_buffer_get(PyTuple_GetItem(parts, 5), "free", VMP_INT32, true, &ret->free_buffer);
}

static bool fit_each_other(const struct vmp_pages *pages)
{
	const struct vmp_pages_state *state = pages->state;

	return state->nodes >= 1 && state->nodes <= VMP_NODES_MAX && state->heat_bits >= 1 &&
	       state->newest < state->heat_bits && pages->planes <= VMP_PLACE_SHIFT &&
	       pages->slot_buffer.count == pages->blocks && pages->free_buffer.count == pages->blocks &&
	       pages->touched_buffer.count == pages->blocks * state->nodes &&
	       pages->detail_buffer.count == pages->blocks * pages->slot_words &&
	       state->slots_used <= pages->blocks && state->free_count <= state->slots_used;
}

bool vmp_pages_get(PyObject *parts, struct vmp_pages *ret)
{
	if (!PyTuple_Check(parts) || PyTuple_Size(parts) != 6) {
		PyErr_SetString(PyExc_TypeError, "parts: need a tuple of six arrays");
		return false;
	}
	if (!take_arrays(parts, ret))
		return false;
	if (ret->state_buffer.count != sizeof(*ret->state) / sizeof(uint64_t)) {
		PyErr_SetString(PyExc_ValueError, "state has another number of items than the C core knows");
		return false;
	}
	ret->state = (struct vmp_pages_state *)ret->state_buffer.u64;
	ret->block = ret->block_buffer.u64;
	ret->slot = ret->slot_buffer.i32;
	ret->touched = ret->touched_buffer.u16;
	ret->detail = ret->detail_buffer.u64;
	ret->free_slots = ret->free_buffer.i32;
	ret->blocks = ret->block_buffer.count;
	ret->planes = (unsigned int)((ret->state->heat_bits + 1) * ret->state->nodes);
	ret->slot_words = (size_t)ret->planes * VMP_WORDS + VMP_PAGES_PER_HUGE / sizeof(uint64_t);
	if (!fit_each_other(ret)) {
		PyErr_SetString(PyExc_ValueError, "the arrays of the page statistics do not fit each other");
		return false;
	}
	return true;
}

void vmp_pages_release(struct vmp_pages *pages)
{
	vmp_buffer_release(&pages->state_buffer);
	vmp_buffer_release(&pages->block_buffer);
	vmp_buffer_release(&pages->slot_buffer);
	vmp_buffer_release(&pages->touched_buffer);
	vmp_buffer_release(&pages->detail_buffer);
	vmp_buffer_release(&pages->free_buffer);
}

uint64_t *vmp_pages_split(struct vmp_pages *pages, size_t block)
{
	struct vmp_pages_state *state = pages->state;
	uint64_t word = pages->block[block], *ret;

	if (pages->slot[block] >= 0)
		return vmp_pages_detail(pages, block);

	pages->slot[block] = state->free_count ? pages->free_slots[--state->free_count] :
						 (int32_t)state->slots_used++;
	ret = vmp_pages_detail(pages, block);
	for (unsigned int p = 0; p < pages->planes; p++)
		memset(ret + (size_t)p * VMP_WORDS, word >> p & 1 ? 0xff : 0, VMP_WORDS * sizeof(uint64_t));
	memset(vmp_pages_places(pages, ret), (uint8_t)(word >> VMP_PLACE_SHIFT), VMP_PAGES_PER_HUGE);
	return ret;
}

/* Add the word that stands for eight equal words of plane @p; false if they are not equal. */
static bool add_plane(const uint64_t *words, unsigned int p, uint64_t *ret)
{
	uint64_t all = words[0], any = words[0];

	for (int i = 1; i < VMP_WORDS; i++) {
		all &= words[i];
		any |= words[i];
	}
	if (any && all != UINT64_MAX)
		return false;
	*ret |= (uint64_t)(any != 0) << p;
	return true;
}

void vmp_pages_merge(struct vmp_pages *pages, size_t block)
{
	uint64_t *detail, word = 0;
	const uint8_t *places;

	if (pages->slot[block] < 0)
		return;
	detail = vmp_pages_detail(pages, block);
	places = vmp_pages_places(pages, detail);
	for (unsigned int p = 0; p < pages->planes; p++) {
		if (!add_plane(detail + (size_t)p * VMP_WORDS, p, &word))
			return;
	}
	if (memcmp(places, places + 1, VMP_PAGES_PER_HUGE - 1))
		return;

	pages->block[block] = word | (uint64_t)places[0] << VMP_PLACE_SHIFT;
	pages->free_slots[pages->state->free_count++] = pages->slot[block];
	pages->slot[block] = -1;
}
