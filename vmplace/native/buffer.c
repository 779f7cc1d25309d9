/* Which memory may be worked on?  Buffers of exactly the item type that a function states. */
#include "core.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct vmp_item_type {
	const char *name;
	Py_ssize_t size;
	const char *formats; /* struct-module codes that mean this type on x86-64 */
};

static const struct vmp_item_type vmp_item_types[] = {
	[VMP_UINT8] = { "uint8", 1, "B" },
	[VMP_INT8] = { "int8", 1, "b" },
	[VMP_INT32] = { "int32", 4, "i" },
	[VMP_UINT64] = { "uint64", 8, "LQ" },
	[VMP_FLOAT64] = { "float64", 8, "d" },
};

static bool vmp_format_matches(const Py_buffer *view, const struct vmp_item_type *type)
{
	const char *format = view->format ? view->format : "B";

	if (strchr("@=<", format[0]) && format[0])
		format++;
	return view->itemsize == type->size && format[0] && !format[1] && strchr(type->formats, format[0]);
}

bool vmp_buffer_get(PyObject *object, const char *name, enum vmp_item item, bool writable,
		    struct vmp_buffer *ret)
{
	const struct vmp_item_type *type = &vmp_item_types[item];
	int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);

	if (PyObject_GetBuffer(object, &ret->view, flags) < 0) {
		PyErr_Format(PyExc_TypeError, "%s: need a %sC-contiguous buffer of %s", name,
			     writable ? "writable " : "", type->name);
		return false;
	}
	ret->held = true;
	if (!vmp_format_matches(&ret->view, type)) {
		PyErr_Format(PyExc_TypeError, "%s: need items of %s, got format '%s' of %zd bytes", name,
			     type->name, ret->view.format ? ret->view.format : "B", ret->view.itemsize);
		return false;
	}
	if ((uintptr_t)ret->view.buf % (uintptr_t)type->size) {
		PyErr_Format(PyExc_TypeError, "%s: items of %s must be aligned", name, type->name);
		return false;
	}
	ret->count = (size_t)(ret->view.len / type->size);
	ret->u8 = ret->view.buf;
	return true;
}

void vmp_buffer_release(struct vmp_buffer *buffer)
{
	if (buffer->held)
		PyBuffer_Release(&buffer->view);
	buffer->held = false;
}

bool vmp_buffer_same_count(const struct vmp_buffer *a, const char *a_name, const struct vmp_buffer *b,
			   const char *b_name)
{
	if (a->count == b->count)
		return true;
	PyErr_Format(PyExc_ValueError, "%s has %zu items, but %s has %zu", a_name, a->count, b_name, b->count);
	return false;
}

PyObject *vmp_result(int64_t count_or_errno)
{
	if (count_or_errno >= 0)
		return PyLong_FromLongLong(count_or_errno);
	errno = (int)-count_or_errno;
	return PyErr_SetFromErrno(PyExc_OSError);
}

ssize_t vmp_pread_full(int fd, void *to, size_t bytes, off_t at)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = pread(fd, (char *)to + done, bytes - done, at + (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

ssize_t vmp_pwrite_full(int fd, const void *from, size_t bytes, off_t at)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t put = pwrite(fd, (const char *)from + done, bytes - done, at + (off_t)done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		if (!put)
			break;
		done += (size_t)put;
	}
	return (ssize_t)done;
}
