/*
 * What the files of the C core share: typed views of Python buffers, scope guards, the functions.
 *
 * Every public function takes its buffers with the GIL held, works without it on what the views pin,
 * and reports failure as -errno so that the work itself knows nothing of Python.
 */
#ifndef VMP_CORE_H
#define VMP_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define VMP_PAGE_BYTES 4096
#define VMP_PAGES_PER_HUGE 512

enum vmp_item { VMP_UINT8, VMP_INT8, VMP_INT32, VMP_UINT64, VMP_FLOAT64 };

struct vmp_buffer {
	Py_buffer view;
	bool held;
	size_t count;
	union {
		uint8_t *u8;
		int8_t *i8;
		int32_t *i32;
		uint64_t *u64;
		double *f64;
	};
};

/* Take a C-contiguous buffer of exactly this item type; false with TypeError set for any other. */
bool vmp_buffer_get(PyObject *object, const char *name, enum vmp_item item, bool writable,
		    struct vmp_buffer *ret);
void vmp_buffer_release(struct vmp_buffer *buffer);

/* False with ValueError set unless both hold the same number of items. */
bool vmp_buffer_same_count(const struct vmp_buffer *a, const char *a_name, const struct vmp_buffer *b,
			   const char *b_name);

#define _cleanup_buffer_ __attribute__((cleanup(vmp_buffer_release)))

/* Turn -errno into a raised OSError (returns NULL), anything else into an int. */
PyObject *vmp_result(int64_t count_or_errno);

/*
 * pread/pwrite until @bytes are done; files of the kernel give at most a page a call.  Returns the bytes
 * done, fewer where the file ends, or -errno.
 */
ssize_t vmp_pread_full(int fd, void *to, size_t bytes, off_t at);
ssize_t vmp_pwrite_full(int fd, const void *from, size_t bytes, off_t at);

PyObject *vmp_rows_alike(PyObject *module, PyObject *args);
PyObject *vmp_rows_some(PyObject *module, PyObject *args);
PyObject *vmp_rows_used(PyObject *module, PyObject *args);
PyObject *vmp_rows_bits(PyObject *module, PyObject *args);
PyObject *vmp_rows_kinds(PyObject *module, PyObject *args);
PyObject *vmp_windows_marks(PyObject *module, PyObject *args);
PyObject *vmp_learn_shares(PyObject *module, PyObject *args);
PyObject *vmp_touch_rate_count(PyObject *module, PyObject *args);
PyObject *vmp_touch_rate_step(PyObject *module, PyObject *args);
PyObject *vmp_queue_length(PyObject *module, PyObject *args);
PyObject *vmp_place_traffic(PyObject *module, PyObject *args);
PyObject *vmp_place_costs(PyObject *module, PyObject *args);
PyObject *vmp_place_cheapest(PyObject *module, PyObject *args);
PyObject *vmp_read_pagemap(PyObject *module, PyObject *args);
PyObject *vmp_folio_heads(PyObject *module, PyObject *args);
PyObject *vmp_idle_mark(PyObject *module, PyObject *args);
PyObject *vmp_idle_collect(PyObject *module, PyObject *args);
PyObject *vmp_move_pages(PyObject *module, PyObject *args);
PyObject *vmp_measure_streams(PyObject *module, PyObject *args);
PyObject *vmp_page_nids(PyObject *module, PyObject *args);
PyObject *vmp_perf_open(PyObject *module, PyObject *args);
PyObject *vmp_perf_drain(PyObject *module, PyObject *args);
PyObject *vmp_perf_newest(PyObject *module, PyObject *args);
PyObject *vmp_perf_count(PyObject *module, PyObject *args);
PyObject *vmp_perf_trace(PyObject *module, PyObject *args);
PyObject *vmp_drain_lru(PyObject *module, PyObject *unused);
PyObject *vmp_placement_open(PyObject *module, PyObject *args);
PyObject *vmp_placement_info(PyObject *module, PyObject *args);
PyObject *vmp_placement_roots(PyObject *module, PyObject *args);
PyObject *vmp_placement_harvest(PyObject *module, PyObject *args);
PyObject *vmp_placement_replicate(PyObject *module, PyObject *args);
PyObject *vmp_placement_move(PyObject *module, PyObject *args);
PyObject *vmp_placement_hints(PyObject *module, PyObject *args);
PyObject *vmp_placement_drain(PyObject *module, PyObject *args);

#endif
