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

PyObject *vmp_planes_heat(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer planes = { 0 }, heat = { 0 };
	PyObject *planes_object, *heat_object;
	size_t bytes;

	if (!PyArg_ParseTuple(args, "OO:planes_heat", &planes_object, &heat_object) ||
	    !vmp_buffer_get(planes_object, "planes", VMP_UINT8, false, &planes) ||
	    !vmp_buffer_get(heat_object, "heat", VMP_UINT8, true, &heat) ||
	    !vmp_buffer_same_count(&planes, "planes", &heat, "heat"))
		return NULL;
	if (heat.count % 8) {
		PyErr_SetString(PyExc_ValueError, "planes: need eight, of whole bytes");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	bytes = planes.count / 8;
	for (size_t i = 0; i < bytes; i++) {
		uint64_t bits = 0;

		/* The newest plane, the first one, is the highest bit of each page. */
		for (size_t p = 0; p < 8; p++)
			bits |= (uint64_t)planes.u8[p * bytes + i] << (8 * (7 - p));
		bits = vmp_transposed(bits);
		memcpy(heat.u8 + i * 8, &bits, sizeof(bits));
	}
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}
