/*
 * How often is each page touched?  One pass over the pages each: counted by what early readings showed, and
 * stepped to the next rate by a table (model/page_rates.py).
 */
#include "core.h"

#include <string.h>

#define VMP_CODES 256

/*
 * @shown: a row of @words for each of @readings, a bit per page; a reading shows what those before it did.
 * A page's answer is the first one that showed it, or @readings, which fit a byte.
 */
struct vmp_touch_rate {
	uint8_t *codes;
	size_t pages;
	const uint64_t *shown;
	size_t words;
	size_t readings;
};

#define VMP_BYTES(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Return bit i of @bits in byte i. */
static uint64_t vmp_spread(uint64_t bits)
{
	uint64_t each = VMP_BYTES(bits & 0xff) & UINT64_C(0x8040201008040201);

	return (each + VMP_BYTES(0x7f)) >> 7 & VMP_BYTES(1);
}

/* Eight pages at a time: no byte borrows, as no page is shown more often than there are readings. */
static void vmp_answers(const struct vmp_touch_rate *rate, size_t word, uint8_t *ret)
{
	uint64_t eight[8];

	for (size_t i = 0; i < 8; i++)
		eight[i] = VMP_BYTES(rate->readings);
	for (size_t r = 0; r < rate->readings; r++)
		for (size_t i = 0; i < 8; i++)
			eight[i] -= vmp_spread(rate->shown[r * rate->words + word] >> (8 * i));
	memcpy(ret, eight, sizeof(eight));
}

/* Return the answer of all pages of a word that are alike. */
static size_t vmp_one_answer(const struct vmp_touch_rate *rate, size_t word)
{
	size_t answer = rate->readings;

	for (size_t r = 0; r < rate->readings; r++)
		answer -= rate->shown[r * rate->words + word] & 1;
	return answer;
}

/* Tell whether all pages of a word have one code and one answer, as those of huge and of idle pages do. */
static bool vmp_alike(const struct vmp_touch_rate *rate, size_t word, size_t pages)
{
	const uint8_t *codes = rate->codes + word * 64;

	for (size_t r = 0; r < rate->readings; r++) {
		uint64_t shown = rate->shown[r * rate->words + word];

		if (shown && ~shown)
			return false;
	}
	return pages == 64 && !memcmp(codes, codes + 1, 63);
}

/* How many pages a word has. */
static size_t vmp_pages_of(const struct vmp_touch_rate *rate, size_t word)
{
	size_t left = rate->pages - word * 64;

	return left < 64 ? left : 64;
}

static void vmp_count(const struct vmp_touch_rate *rate, uint64_t *counts)
{
	size_t columns = rate->readings + 1;
	uint8_t answers[64];

	for (size_t word = 0; word < rate->words; word++) {
		const uint8_t *codes = rate->codes + word * 64;
		size_t pages = vmp_pages_of(rate, word);

		if (vmp_alike(rate, word, pages)) {
			counts[codes[0] * columns + vmp_one_answer(rate, word)] += pages;
			continue;
		}
		vmp_answers(rate, word, answers);
		for (size_t i = 0; i < pages; i++)
			counts[codes[i] * columns + answers[i]]++;
	}
}

static void vmp_step(const struct vmp_touch_rate *rate, const uint8_t *table)
{
	size_t columns = rate->readings + 1;
	uint8_t answers[64];

	for (size_t word = 0; word < rate->words; word++) {
		uint8_t *codes = rate->codes + word * 64;
		size_t pages = vmp_pages_of(rate, word);

		if (vmp_alike(rate, word, pages)) {
			memset(codes, table[codes[0] * columns + vmp_one_answer(rate, word)], pages);
			continue;
		}
		vmp_answers(rate, word, answers);
		for (size_t i = 0; i < pages; i++)
			codes[i] = table[codes[i] * columns + answers[i]];
	}
}

/* Fill in @ret; false with ValueError set unless the buffers and the table of @cells fit each other. */
static bool vmp_touch_rate_get(const struct vmp_buffer *codes, const struct vmp_buffer *shown, size_t cells,
			 struct vmp_touch_rate *ret)
{
	size_t words = (codes->count + 63) / 64;

	*ret = (struct vmp_touch_rate) {
		.codes = codes->u8, .pages = codes->count, .shown = shown->u64, .words = words,
		.readings = words ? shown->count / words : 0,
	};
	if (words && shown->count && shown->count % words == 0 && ret->readings < VMP_CODES &&
	    cells == VMP_CODES * (ret->readings + 1))
		return true;
	PyErr_SetString(PyExc_ValueError, "codes, shown, table: need a row of words for each reading");
	return false;
}

PyObject *vmp_touch_rate_count(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer codes = { 0 }, shown = { 0 }, counts = { 0 };
	PyObject *codes_object, *shown_object, *counts_object;
	struct vmp_touch_rate rate;

	if (!PyArg_ParseTuple(args, "OOO:touch_rate_count", &codes_object, &shown_object, &counts_object) ||
	    !vmp_buffer_get(codes_object, "codes", VMP_UINT8, false, &codes) ||
	    !vmp_buffer_get(shown_object, "shown", VMP_UINT64, false, &shown) ||
	    !vmp_buffer_get(counts_object, "counts", VMP_UINT64, true, &counts) ||
	    !vmp_touch_rate_get(&codes, &shown, counts.count, &rate))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	vmp_count(&rate, counts.u64);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *vmp_touch_rate_step(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer codes = { 0 }, shown = { 0 }, table = { 0 };
	PyObject *codes_object, *shown_object, *table_object;
	struct vmp_touch_rate rate;

	if (!PyArg_ParseTuple(args, "OOO:touch_rate_step", &codes_object, &shown_object, &table_object) ||
	    !vmp_buffer_get(codes_object, "codes", VMP_UINT8, true, &codes) ||
	    !vmp_buffer_get(shown_object, "shown", VMP_UINT64, false, &shown) ||
	    !vmp_buffer_get(table_object, "table", VMP_UINT8, false, &table) ||
	    !vmp_touch_rate_get(&codes, &shown, table.count, &rate))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	vmp_step(&rate, table.u8);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}
