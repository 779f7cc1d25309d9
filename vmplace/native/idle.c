/*
 * Was a frame touched?  /sys/kernel/mm/page_idle/bitmap, one bit a frame, read and written by aligned
 * 64-bit words (Documentation/admin-guide/mm/idle_page_tracking.rst).
 *
 * Reading a word makes the kernel walk the reverse mappings of each frame whose idle flag is set, and so
 * ask KVM's MMU notifier for, and clear, the accessed bits of the guest's nested page tables.  A touch thus
 * found clears the frame's idle flag and is never lost for another reader of the same word.
 *
 * Words are gathered into spans of adjacent words, one system call each.  A span never covers a word that
 * nobody asked for: its frames might be another guest's, and walking them costs as much as ours.
 */
#include "core.h"

#include <errno.h>
#include <string.h>

/* sysfs hands out at most a page a call (fs/kernfs/file.c: kernfs_file_read_iter). */
#define VMP_SPAN_WORDS 512

struct vmp_span {
	uint64_t first, last; /* words, inclusive */
	size_t end;	      /* index behind the last pfn of the span */
};

static bool vmp_span_extend(struct vmp_span *span, uint64_t word)
{
	if (word + 1 < span->first || word > span->last + 1)
		return false;
	if (word < span->first && span->last - word < VMP_SPAN_WORDS)
		span->first = word;
	else if (word > span->last && word - span->first < VMP_SPAN_WORDS)
		span->last = word;
	return word >= span->first && word <= span->last;
}

/* The longest span that starts with pfns[@at], which is not 0. */
static struct vmp_span vmp_span_from(const uint64_t *pfns, size_t count, size_t at)
{
	struct vmp_span span = { pfns[at] / 64, pfns[at] / 64, at + 1 };

	while (span.end < count && (!pfns[span.end] || vmp_span_extend(&span, pfns[span.end] / 64)))
		span.end++;
	return span;
}

static int64_t vmp_idle_mark_all(int fd, const uint64_t *pfns, size_t count)
{
	uint64_t words[VMP_SPAN_WORDS];
	int64_t written = 0;

	for (size_t at = 0; at < count;) {
		if (!pfns[at]) {
			at++;
			continue;
		}
		struct vmp_span span = vmp_span_from(pfns, count, at);
		size_t bytes = (span.last - span.first + 1) * sizeof(uint64_t);

		memset(words, 0, bytes);
		for (; at < span.end; at++)
			if (pfns[at])
				words[pfns[at] / 64 - span.first] |= UINT64_C(1) << pfns[at] % 64;
		ssize_t put = vmp_pwrite_full(fd, words, bytes, (off_t)(span.first * sizeof(uint64_t)));

		/* -ENXIO: behind the last frame.  A frame unplugged just now needs no mark. */
		if (put < 0 && put != -ENXIO)
			return put;
		written += put > 0 ? put / (ssize_t)sizeof(uint64_t) : 0;
	}
	return written;
}

static int64_t vmp_idle_collect_all(int fd, const uint64_t *pfns, size_t count, uint8_t *accessed)
{
	uint64_t words[VMP_SPAN_WORDS];
	int64_t touched = 0;

	for (size_t at = 0; at < count;) {
		if (!pfns[at]) {
			accessed[at++] = 0;
			continue;
		}
		struct vmp_span span = vmp_span_from(pfns, count, at);
		size_t bytes = (span.last - span.first + 1) * sizeof(uint64_t);

		/* A word behind the last frame claims nothing: all idle. */
		memset(words, 0xff, bytes);
		ssize_t got = vmp_pread_full(fd, words, bytes, (off_t)(span.first * sizeof(uint64_t)));

		if (got < 0 && got != -ENXIO)
			return got;
		for (; at < span.end; at++) {
			uint64_t word = pfns[at] ? words[pfns[at] / 64 - span.first] : 0;

			accessed[at] = pfns[at] && !(word >> pfns[at] % 64 & 1);
			touched += accessed[at];
		}
	}
	return touched;
}

PyObject *vmp_idle_mark(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer pfns = { 0 };
	PyObject *pfns_object;
	int64_t written;
	int fd;

	if (!PyArg_ParseTuple(args, "iO:idle_mark", &fd, &pfns_object) ||
	    !vmp_buffer_get(pfns_object, "pfns", VMP_UINT64, false, &pfns))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	written = vmp_idle_mark_all(fd, pfns.u64, pfns.count);
	Py_END_ALLOW_THREADS
	return vmp_result(written);
}

PyObject *vmp_idle_collect(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer pfns = { 0 }, accessed = { 0 };
	PyObject *pfns_object, *accessed_object;
	int64_t touched;
	int fd;

	if (!PyArg_ParseTuple(args, "iOO:idle_collect", &fd, &pfns_object, &accessed_object) ||
	    !vmp_buffer_get(pfns_object, "pfns", VMP_UINT64, false, &pfns) ||
	    !vmp_buffer_get(accessed_object, "accessed", VMP_UINT8, true, &accessed) ||
	    !vmp_buffer_same_count(&pfns, "pfns", &accessed, "accessed"))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	touched = vmp_idle_collect_all(fd, pfns.u64, pfns.count, accessed.u8);
	Py_END_ALLOW_THREADS
	return vmp_result(touched);
}
