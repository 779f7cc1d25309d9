/* How do samples and counts of hardware come here?  perf_event_open(2) and its ring, without a perf process. */
#include "calls.h"
#include "core.h"
#include "perf_records.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The ring's control page lies before its data, which is whole pages, a power of two. */
struct vmp_perf_ring {
	struct perf_event_mmap_page *control;
	const uint8_t *data;
	size_t size;
};

static bool vmp_perf_ring_of(const struct vmp_buffer *buffer, struct vmp_perf_ring *ret)
{
	size_t size = buffer->count - VMP_PAGE_BYTES;

	if (buffer->count <= VMP_PAGE_BYTES || size & (size - 1)) {
		PyErr_SetString(PyExc_ValueError, "ring: need a control page and a power of two of bytes");
		return false;
	}
	if ((uintptr_t)buffer->u8 % sizeof(uint64_t)) {
		PyErr_SetString(PyExc_ValueError, "ring: must be aligned");
		return false;
	}
	ret->control = (struct perf_event_mmap_page *)buffer->u8;
	ret->data = buffer->u8 + VMP_PAGE_BYTES;
	ret->size = size;
	return true;
}

static int vmp_perf_drain_ring(const struct vmp_perf_ring *ring, const struct vmp_perf_table *table,
			       struct vmp_perf_counts *counts)
{
	/* Pairs with the kernel's barrier: what is before a visible head is written. */
	uint64_t head = __atomic_load_n(&ring->control->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = ring->control->data_tail;
	int result = vmp_perf_parse(ring->data, ring->size, head, &tail, table, counts);

	/* The kernel may write where records were once it sees the new tail. */
	__atomic_store_n(&ring->control->data_tail, tail, __ATOMIC_RELEASE);
	return result;
}

PyObject *vmp_perf_drain(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer ring_buffer = { 0 }, items = { 0 };
	struct vmp_perf_counts counts = { 0 };
	struct vmp_perf_table table;
	struct vmp_perf_ring ring;
	PyObject *ring_object, *items_object;
	int result;

	if (!PyArg_ParseTuple(args, "OO:perf_drain", &ring_object, &items_object) ||
	    !vmp_buffer_get(ring_object, "ring", VMP_UINT8, true, &ring_buffer) ||
	    !vmp_perf_ring_of(&ring_buffer, &ring) ||
	    !vmp_buffer_get(items_object, "table", VMP_UINT64, true, &items))
		return NULL;
	table = (struct vmp_perf_table){ items.u64, items.count / VMP_PERF_COLUMNS };

	Py_BEGIN_ALLOW_THREADS
	result = vmp_perf_drain_ring(&ring, &table, &counts);
	Py_END_ALLOW_THREADS
	if (result < 0)
		return vmp_result(result);
	return Py_BuildValue("(KKK)", (unsigned long long)counts.samples, (unsigned long long)counts.lost,
			     (unsigned long long)counts.throttled);
}

PyObject *vmp_perf_newest(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer ring_buffer = { 0 }, content = { 0 };
	struct vmp_perf_ring ring;
	PyObject *ring_object, *content_object;
	const uint64_t *head;
	size_t count;

	if (!PyArg_ParseTuple(args, "OO:perf_newest", &ring_object, &content_object) ||
	    !vmp_buffer_get(ring_object, "ring", VMP_UINT8, false, &ring_buffer) ||
	    !vmp_perf_ring_of(&ring_buffer, &ring) ||
	    !vmp_buffer_get(content_object, "content", VMP_UINT8, true, &content))
		return NULL;
	if (content.count < ring.size) {
		PyErr_SetString(PyExc_ValueError, "content: need as many bytes as the ring has data");
		return NULL;
	}
	head = (const uint64_t *)&ring.control->data_head;

	Py_BEGIN_ALLOW_THREADS
	count = vmp_perf_copy_newest(ring.data, ring.size, head, content.u8);
	Py_END_ALLOW_THREADS
	return PyLong_FromSize_t(count);
}

/* Without the GIL: of a thread it waits for exec_update_lock, which the thread's process can keep (held.py). */
static int vmp_open_event(struct perf_event_attr *attr, int tid, int cpu)
{
	long ret;

	Py_BEGIN_ALLOW_THREADS
	ret = syscall(SYS_perf_event_open, attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	ret = ret < 0 ? -errno : ret;
	Py_END_ALLOW_THREADS
	return (int)ret;
}

PyObject *vmp_perf_open(PyObject *module, PyObject *args)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.sample_type = VMP_PERF_SAMPLE_TYPE,
		.disabled = 1,
	};
	unsigned int type;
	unsigned long long config, period;
	int cpu;

	if (!PyArg_ParseTuple(args, "IKKi:perf_open", &type, &config, &period, &cpu))
		return NULL;
	attr.type = type;
	attr.config = config;
	attr.sample_period = period;
	return vmp_result(vmp_open_event(&attr, -1, cpu));
}

/* Without the GIL: it waits for exec_update_lock, which the thread's process can keep (held.py). */
PyObject *vmp_perf_count(PyObject *module, PyObject *args)
{
	unsigned long long config;
	unsigned int type;
	int tid, ret;

	if (!PyArg_ParseTuple(args, "IKi:perf_count", &type, &config, &tid))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	ret = vmp_open_count(type, config, tid);
	Py_END_ALLOW_THREADS
	return vmp_result(ret);
}

PyObject *vmp_perf_trace(PyObject *module, PyObject *args)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_TRACEPOINT,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_TIME | PERF_SAMPLE_RAW,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
		.write_backward = 1,
	};
	unsigned long long config;
	int tid;

	if (!PyArg_ParseTuple(args, "Ki:perf_trace", &config, &tid))
		return NULL;
	attr.config = config;
	return vmp_result(vmp_open_event(&attr, tid, -1));
}
