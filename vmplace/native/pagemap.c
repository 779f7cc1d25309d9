/* Which frame backs a page?  /proc/PID/pagemap, Documentation/admin-guide/mm/pagemap.rst. */
#include "core.h"

PyObject *vmp_read_pagemap(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer entries = { 0 };
	PyObject *hva_object, *entries_object;
	unsigned long long hva;
	ssize_t got;
	int fd;

	if (!PyArg_ParseTuple(args, "iOO:read_pagemap", &fd, &hva_object, &entries_object))
		return NULL;
	hva = PyLong_AsUnsignedLongLong(hva_object);
	if (PyErr_Occurred())
		return NULL;
	if (hva % VMP_PAGE_BYTES)
		return PyErr_Format(PyExc_ValueError, "hva %llu is not a multiple of %d", hva, VMP_PAGE_BYTES);
	if (!vmp_buffer_get(entries_object, "entries", VMP_UINT64, true, &entries))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	got = vmp_pread_full(fd, entries.u64, entries.count * sizeof(uint64_t),
			     (off_t)(hva / VMP_PAGE_BYTES * sizeof(uint64_t)));
	Py_END_ALLOW_THREADS
	return vmp_result(got < 0 ? got : got / (ssize_t)sizeof(uint64_t));
}
