/*
 * Rows of bytes, one per 2 MiB block: which of them are of equal bytes, and what do planes of bits tell of
 * each page?
 */
#include "core.h"

#include <string.h>

static bool vmp_is_alike(const uint8_t *row, size_t width)
{
	return !memcmp(row, row + 1, width - 1);
}

PyObject *vmp_rows_alike(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer rows = { 0 }, alike = { 0 };
	PyObject *rows_object, *alike_object;
	size_t width;

	if (!PyArg_ParseTuple(args, "OO:rows_alike", &rows_object, &alike_object) ||
	    !vmp_buffer_get(rows_object, "rows", VMP_UINT8, false, &rows) ||
	    !vmp_buffer_get(alike_object, "alike", VMP_UINT8, true, &alike))
		return NULL;
	if (alike.count && (!rows.count || rows.count % alike.count)) {
		PyErr_SetString(PyExc_ValueError, "alike needs an item for each row of bytes");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	width = alike.count ? rows.count / alike.count : 0;
	for (size_t i = 0; i < alike.count; i++)
		alike.u8[i] = vmp_is_alike(rows.u8 + i * width, width);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* Swap rows and columns: bit p of byte b becomes bit b of byte p. */
static uint64_t vmp_transposed(uint64_t bits)
{
	uint64_t swap;

	swap = (bits ^ bits >> 7) & UINT64_C(0x00aa00aa00aa00aa);
	bits ^= swap ^ swap << 7;
	swap = (bits ^ bits >> 14) & UINT64_C(0x0000cccc0000cccc);
	bits ^= swap ^ swap << 14;
	swap = (bits ^ bits >> 28) & UINT64_C(0x00000000f0f0f0f0);
	return bits ^ swap ^ swap << 28;
}

/*
 * Rows as sampling/block_rows.py keeps them: the first byte of each row; a bit per row, highest first, for
 * those whose bytes differ; how many of these come before each eighth row; their bytes.
 */
struct vmp_kept {
	struct vmp_buffer value, mixed, before, detail;
	size_t width;
	size_t details;
};

static void vmp_kept_release(struct vmp_kept *kept)
{
	vmp_buffer_release(&kept->value);
	vmp_buffer_release(&kept->mixed);
	vmp_buffer_release(&kept->before);
	vmp_buffer_release(&kept->detail);
}

#define _cleanup_kept_ __attribute__((cleanup(vmp_kept_release)))

/* Of a row, in bytes; no rows of the program are near it, and sizes of arrays cannot wrap below it. */
#define VMP_MAX_WIDTH (1 << 16)

/* @rows: the tuple (value, mixed, before, detail, width). */
static bool vmp_kept_get(PyObject *rows, struct vmp_kept *ret)
{
	PyObject *value, *mixed, *before, *detail;
	Py_ssize_t width;

	if (!PyTuple_Check(rows)) {
		PyErr_SetString(PyExc_TypeError, "rows: need a tuple");
		return false;
	}
	if (!PyArg_ParseTuple(rows, "OOOOn:rows", &value, &mixed, &before, &detail, &width) ||
	    !vmp_buffer_get(value, "value", VMP_UINT8, false, &ret->value) ||
	    !vmp_buffer_get(mixed, "mixed", VMP_UINT8, false, &ret->mixed) ||
	    !vmp_buffer_get(before, "before", VMP_INT32, false, &ret->before) ||
	    !vmp_buffer_get(detail, "detail", VMP_UINT8, false, &ret->detail))
		return false;
	if (width < 1 || width > VMP_MAX_WIDTH || ret->mixed.count != (ret->value.count + 7) / 8 ||
	    ret->before.count != ret->mixed.count || ret->detail.count % (size_t)width) {
		PyErr_SetString(PyExc_ValueError, "rows: shapes that do not fit");
		return false;
	}
	ret->width = (size_t)width;
	ret->details = ret->detail.count / ret->width;
	return true;
}

static bool vmp_is_mixed(const struct vmp_kept *kept, uint64_t row)
{
	return kept->mixed.u8[row / 8] << row % 8 & 128;
}

/* Return the bytes of a row whose bytes differ; NULL if the rows were damaged. */
static const uint8_t *vmp_detail(const struct vmp_kept *kept, uint64_t row)
{
	/* Of the eight rows, those before this one are the highest bits. */
	int64_t at = kept->before.i32[row / 8] + __builtin_popcount(kept->mixed.u8[row / 8] >> (8 - row % 8));

	return at >= 0 && (size_t)at < kept->details ? kept->detail.u8 + (size_t)at * kept->width : NULL;
}

static bool vmp_rows_are_there(const struct vmp_kept *kept, const struct vmp_buffer *which)
{
	for (size_t i = 0; i < which->count; i++) {
		if (which->u64[i] >= kept->value.count ||
		    (vmp_is_mixed(kept, which->u64[i]) && !vmp_detail(kept, which->u64[i]))) {
			PyErr_SetString(PyExc_IndexError, "which: no such row");
			return false;
		}
	}
	return true;
}

PyObject *vmp_rows_some(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer which = { 0 }, found = { 0 };
	_cleanup_kept_ struct vmp_kept kept = { 0 };
	PyObject *rows, *which_object, *found_object;

	if (!PyArg_ParseTuple(args, "OOO:rows_some", &rows, &which_object, &found_object) ||
	    !vmp_kept_get(rows, &kept) || !vmp_buffer_get(which_object, "which", VMP_UINT64, false, &which) ||
	    !vmp_buffer_get(found_object, "found", VMP_UINT8, true, &found) || !vmp_rows_are_there(&kept, &which))
		return NULL;
	if (found.count != which.count * kept.width) {
		PyErr_SetString(PyExc_ValueError, "found needs a row for each that is asked for");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < which.count; i++) {
		if (vmp_is_mixed(&kept, which.u64[i]))
			memcpy(found.u8 + i * kept.width, vmp_detail(&kept, which.u64[i]), kept.width);
		else
			memset(found.u8 + i * kept.width, kept.value.u8[which.u64[i]], kept.width);
	}
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *vmp_rows_used(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer which = { 0 }, used = { 0 };
	_cleanup_kept_ struct vmp_kept kept = { 0 };
	PyObject *rows, *which_object, *used_object;
	int64_t count = 0;

	if (!PyArg_ParseTuple(args, "OOO:rows_used", &rows, &which_object, &used_object) ||
	    !vmp_kept_get(rows, &kept) || !vmp_buffer_get(which_object, "which", VMP_UINT64, false, &which) ||
	    !vmp_buffer_get(used_object, "used", VMP_UINT8, true, &used) ||
	    !vmp_buffer_same_count(&which, "which", &used, "used") || !vmp_rows_are_there(&kept, &which))
		return NULL;

	for (size_t i = 0; i < which.count; i++) {
		used.u8[i] = kept.value.u8[which.u64[i]] || vmp_is_mixed(&kept, which.u64[i]);
		count += used.u8[i];
	}
	return PyLong_FromLongLong(count);
}

/* Eight bytes are counted together: to count is a call where the CPU may lack the instruction. */
static int32_t vmp_row_bits(const uint8_t *row, size_t width, size_t step)
{
	uint64_t bytes = 0;
	int32_t bits = 0;

	for (size_t at = 0, nth = 0; at < width; at += step, nth++) {
		if (nth % 8 == 0) {
			bits += __builtin_popcountll(bytes);
			bytes = 0;
		}
		bytes |= (uint64_t)row[at] << 8 * (nth % 8);
	}
	return bits + __builtin_popcountll(bytes);
}

/* Add to @bits how many are set in each @step-th byte of the rows @which; false with an error set. */
static bool vmp_add_bits(PyObject *rows, const struct vmp_buffer *which, size_t step, struct vmp_buffer *bits)
{
	_cleanup_kept_ struct vmp_kept kept = { 0 };
	int32_t asked;

	if (!vmp_kept_get(rows, &kept) || !vmp_rows_are_there(&kept, which))
		return false;

	Py_BEGIN_ALLOW_THREADS
	asked = (int32_t)((kept.width - 1) / step + 1);
	for (size_t i = 0; i < which->count; i++) {
		const uint8_t *row = vmp_is_mixed(&kept, which->u64[i]) ? vmp_detail(&kept, which->u64[i]) : NULL;

		if (row)
			bits->i32[i] += vmp_row_bits(row, kept.width, step);
		else
			bits->i32[i] += __builtin_popcount(kept.value.u8[which->u64[i]]) * asked;
	}
	Py_END_ALLOW_THREADS
	return true;
}

PyObject *vmp_rows_bits(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer which = { 0 }, bits = { 0 };
	PyObject *several, *which_object, *bits_object;
	Py_ssize_t step;

	if (!PyArg_ParseTuple(args, "O!OnO:rows_bits", &PyTuple_Type, &several, &which_object, &step,
			      &bits_object) ||
	    !vmp_buffer_get(which_object, "which", VMP_UINT64, false, &which) ||
	    !vmp_buffer_get(bits_object, "bits", VMP_INT32, true, &bits) ||
	    !vmp_buffer_same_count(&which, "which", &bits, "bits"))
		return NULL;
	if (step < 1) {
		PyErr_SetString(PyExc_ValueError, "step: at least 1");
		return NULL;
	}

	memset(bits.i32, 0, bits.count * sizeof(*bits.i32));
	for (Py_ssize_t nth = 0; nth < PyTuple_Size(several); nth++)
		if (!vmp_add_bits(PyTuple_GetItem(several, nth), &which, (size_t)step, &bits))
			return NULL;
	Py_RETURN_NONE;
}

/* What rows of bits are in any of several: @used: not of zeros; @uneven: neither all set nor all clear. */
static void vmp_add_kinds(const struct vmp_kept *kept, uint8_t *used, uint8_t *uneven)
{
	for (size_t row = 0; row < kept->value.count; row++) {
		uint8_t value = kept->value.u8[row];
		bool mixed;
		uint64_t eight;

		/* Most memory is touched by nobody: eight rows are passed over at once. */
		if (row % 8 == 0 && !kept->mixed.u8[row / 8] && row + 8 <= kept->value.count) {
			memcpy(&eight, kept->value.u8 + row, sizeof(eight));
			if (!eight) {
				row += 7;
				continue;
			}
		}
		mixed = vmp_is_mixed(kept, row);
		used[row] |= mixed || value;
		uneven[row] |= mixed || (value && value != UINT8_MAX);
	}
}

PyObject *vmp_rows_kinds(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer used = { 0 }, uneven = { 0 };
	PyObject *several, *used_object, *uneven_object;

	if (!PyArg_ParseTuple(args, "O!OO:rows_kinds", &PyTuple_Type, &several, &used_object, &uneven_object) ||
	    !vmp_buffer_get(used_object, "used", VMP_UINT8, true, &used) ||
	    !vmp_buffer_get(uneven_object, "uneven", VMP_UINT8, true, &uneven) ||
	    !vmp_buffer_same_count(&used, "used", &uneven, "uneven"))
		return NULL;

	memset(used.u8, 0, used.count);
	memset(uneven.u8, 0, uneven.count);
	for (Py_ssize_t nth = 0; nth < PyTuple_Size(several); nth++) {
		_cleanup_kept_ struct vmp_kept kept = { 0 };

		if (!vmp_kept_get(PyTuple_GetItem(several, nth), &kept) ||
		    !vmp_buffer_same_count(&kept.value, "value", &used, "used"))
			return NULL;
		vmp_add_kinds(&kept, used.u8, uneven.u8);
	}
	Py_RETURN_NONE;
}

#define VMP_MAX_WINDOWS 8

/* Windows of bits, @planes of @blocks rows each; @plane: of one of these, or of all together if it is -1. */
struct vmp_windows {
	struct vmp_kept kept[VMP_MAX_WINDOWS];
	size_t count;
	size_t blocks;
	Py_ssize_t plane;
};

static void vmp_windows_release(struct vmp_windows *windows)
{
	for (size_t w = 0; w < VMP_MAX_WINDOWS; w++)
		vmp_kept_release(&windows->kept[w]);
}

#define _cleanup_windows_ __attribute__((cleanup(vmp_windows_release)))

static bool vmp_windows_get(PyObject *rows, struct vmp_windows *ret)
{
	Py_ssize_t count = PyTuple_Check(rows) ? PyTuple_Size(rows) : -1;

	if (count < 0 || count > VMP_MAX_WINDOWS || !ret->blocks || ret->plane < -1) {
		PyErr_Format(PyExc_ValueError, "windows: a tuple of at most %d, of some blocks", VMP_MAX_WINDOWS);
		return false;
	}
	for (ret->count = 0; ret->count < (size_t)count; ret->count++) {
		struct vmp_kept *kept = &ret->kept[ret->count];

		if (!vmp_kept_get(PyTuple_GetItem(rows, (Py_ssize_t)ret->count), kept))
			return false;
		if (kept->width != VMP_PAGES_PER_HUGE / 8 || kept->value.count % ret->blocks ||
		    (ret->plane >= 0 && (size_t)ret->plane >= kept->value.count / ret->blocks)) {
			PyErr_SetString(PyExc_ValueError, "windows: rows of bits, in planes of all blocks");
			return false;
		}
	}
	return true;
}

/* False with IndexError set unless all windows have these blocks. */
static bool vmp_blocks_are_there(const struct vmp_windows *windows, const struct vmp_buffer *some)
{
	for (size_t i = 0; i < some->count; i++) {
		if (some->u64[i] >= windows->blocks) {
			PyErr_SetString(PyExc_IndexError, "no such block");
			return false;
		}
	}
	return true;
}

static size_t vmp_first_plane(const struct vmp_windows *windows)
{
	return windows->plane < 0 ? 0 : (size_t)windows->plane;
}

static size_t vmp_end_plane(const struct vmp_windows *windows, size_t window)
{
	size_t planes = windows->kept[window].value.count / windows->blocks;

	return windows->plane < 0 ? planes : (size_t)windows->plane + 1;
}

/* OR the bits of a block in one window into @bits[64]; false if there are none, or the rows were damaged. */
static bool vmp_add_block(const struct vmp_windows *windows, size_t window, uint64_t block, uint8_t *bits)
{
	const struct vmp_kept *kept = &windows->kept[window];
	size_t end = vmp_end_plane(windows, window);
	bool any = false;

	for (size_t plane = vmp_first_plane(windows); plane < end; plane++) {
		uint64_t row = plane * windows->blocks + block;
		const uint8_t *detail = vmp_is_mixed(kept, row) ? vmp_detail(kept, row) : NULL;
		uint8_t value = kept->value.u8[row];

		if (!detail && !value)
			continue;
		any = true;
		for (size_t b = 0; b < VMP_PAGES_PER_HUGE / 8; b++)
			bits[b] |= detail ? detail[b] : value;
	}
	return any;
}

/* Whether a block has any bit in one window, without a look at each of them. */
static bool vmp_has_bits(const struct vmp_windows *windows, size_t window, uint64_t block)
{
	const struct vmp_kept *kept = &windows->kept[window];
	size_t end = vmp_end_plane(windows, window);

	for (size_t plane = vmp_first_plane(windows); plane < end; plane++) {
		uint64_t row = plane * windows->blocks + block;

		if (kept->value.u8[row] || (vmp_is_mixed(kept, row) && vmp_detail(kept, row)))
			return true;
	}
	return false;
}

/* Bit w of a page's mark is its bit in window w. */
static bool vmp_mark_pages(const struct vmp_windows *windows, uint64_t block, uint8_t *marks)
{
	uint8_t bits[VMP_MAX_WINDOWS][VMP_PAGES_PER_HUGE / 8] = { 0 };
	bool any = false;

	for (size_t w = 0; w < windows->count; w++)
		any |= vmp_add_block(windows, w, block, bits[w]);
	if (!any) {
		memset(marks, 0, VMP_PAGES_PER_HUGE);
		return false;
	}
	for (size_t b = 0; b < VMP_PAGES_PER_HUGE / 8; b++) {
		uint64_t pages = 0;

		for (size_t w = 0; w < windows->count; w++)
			pages |= (uint64_t)bits[w][b] << (8 * w);
		pages = vmp_transposed(pages);
		memcpy(marks + b * 8, &pages, sizeof(pages));
	}
	return true;
}

/* Of a block as a whole: whether it has any bit. */
static uint8_t vmp_mark_block(const struct vmp_windows *windows, uint64_t block)
{
	uint8_t mark = 0;

	for (size_t w = 0; w < windows->count; w++)
		mark |= (uint8_t)(vmp_has_bits(windows, w, block) << w);
	return mark;
}

PyObject *vmp_windows_marks(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer apart = { 0 }, whole = { 0 }, marks = { 0 };
	PyObject *rows, *apart_object, *whole_object, *marks_object;
	_cleanup_windows_ struct vmp_windows windows = { 0 };
	Py_ssize_t blocks;
	bool any = false;

	if (!PyArg_ParseTuple(args, "OnnOOO:windows_marks", &rows, &blocks, &windows.plane, &apart_object,
			      &whole_object, &marks_object))
		return NULL;
	windows.blocks = blocks > 0 ? (size_t)blocks : 0;
	if (!vmp_windows_get(rows, &windows) || !vmp_buffer_get(apart_object, "apart", VMP_UINT64, false, &apart) ||
	    !vmp_buffer_get(whole_object, "whole", VMP_UINT64, false, &whole) ||
	    !vmp_buffer_get(marks_object, "marks", VMP_UINT8, true, &marks) ||
	    !vmp_blocks_are_there(&windows, &apart) || !vmp_blocks_are_there(&windows, &whole))
		return NULL;
	if (marks.count != apart.count * VMP_PAGES_PER_HUGE + whole.count) {
		PyErr_SetString(PyExc_ValueError, "marks needs an item for each page, and one for each whole block");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < apart.count; i++)
		any |= vmp_mark_pages(&windows, apart.u64[i], marks.u8 + i * VMP_PAGES_PER_HUGE);
	for (size_t i = 0; i < whole.count; i++) {
		uint8_t *mark = marks.u8 + apart.count * VMP_PAGES_PER_HUGE + i;

		*mark = vmp_mark_block(&windows, whole.u64[i]);
		any |= *mark;
	}
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(any);
}
