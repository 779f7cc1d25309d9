/*
 * Hint faults of a patched KVM: arm them, and take records out of the ring that KVM writes.
 * The structures are those of kvm-patches/kvm_placement.h, which is the kernel's own header.
 */
#include "core.h"
#include "placement_ioctl.h"

/* gpa, time in ns, vCPU id, nid, flags, level: a row each. */
#define VMP_HINT_COLUMNS 6

struct vmp_hint_ring {
	struct kvm_placement_hint_ring *header;
	const struct kvm_placement_hint *entries;
	/* A power of two. */
	uint64_t size;
};

static bool vmp_hint_ring_of(const struct vmp_buffer *buffer, struct vmp_hint_ring *ret)
{
	ret->header = (struct kvm_placement_hint_ring *)buffer->u8;
	ret->entries = (const struct kvm_placement_hint *)(buffer->u8 + KVM_PLACEMENT_HINT_RING_ENTRIES);
	ret->size = buffer->count > KVM_PLACEMENT_HINT_RING_ENTRIES ? ret->header->nr_entries : 0;

	if (!ret->size || ret->size & (ret->size - 1) || (uintptr_t)buffer->u8 % sizeof(uint64_t) ||
	    (buffer->count - KVM_PLACEMENT_HINT_RING_ENTRIES) / sizeof(*ret->entries) < ret->size) {
		PyErr_SetString(PyExc_ValueError, "ring: is not one of hint faults");
		return false;
	}
	return true;
}

static void vmp_hint_take(const struct kvm_placement_hint *hint, uint64_t *table, size_t room, size_t at)
{
	table[0 * room + at] = hint->gpa;
	table[1 * room + at] = hint->time;
	table[2 * room + at] = hint->vcpu_id;
	table[3 * room + at] = (uint64_t)(int64_t)hint->nid;
	table[4 * room + at] = hint->flags;
	table[5 * room + at] = hint->level;
}

/* Return how many records were taken: all there are, or as many as there is room for. */
static int64_t vmp_hint_drain(const struct vmp_hint_ring *ring, uint64_t *table, size_t room)
{
	/* Pairs with the kernel's release: records before a visible tail are written. */
	uint64_t tail = __atomic_load_n(&ring->header->tail, __ATOMIC_ACQUIRE);
	uint64_t head = ring->header->head;
	int64_t ret = -EBADMSG;
	size_t count = 0;

	if (tail - head <= ring->size) {
		for (; head != tail && count < room; head++)
			vmp_hint_take(&ring->entries[head & (ring->size - 1)], table, room, count++);
		ret = (int64_t)count;
	} else {
		head = tail;
	}

	/* The kernel may write where records were once it sees the new head. */
	__atomic_store_n(&ring->header->head, head, __ATOMIC_RELEASE);
	return ret;
}

PyObject *vmp_placement_hints(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer spans = { 0 };
	struct kvm_placement_hints hints = { 0 };
	PyObject *spans_object;
	int fd, err;

	if (!PyArg_ParseTuple(args, "iOIII:placement_hints", &fd, &spans_object, &hints.budget,
			      &hints.period_ms, &hints.nr_entries) ||
	    !vmp_buffer_get(spans_object, "spans", VMP_UINT64, false, &spans))
		return NULL;

	/* Pairs of numbers are what struct kvm_placement_span is. */
	hints.spans = (uintptr_t)spans.u64;
	hints.nr_spans = (uint32_t)(spans.count / 2);
	Py_BEGIN_ALLOW_THREADS
	err = vmp_ioctl(fd, KVM_PLACEMENT_HINTS, &hints);
	Py_END_ALLOW_THREADS
	if (err)
		return vmp_result(err);
	Py_RETURN_NONE;
}

PyObject *vmp_placement_drain(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer ring_buffer = { 0 }, table = { 0 };
	PyObject *ring_object, *table_object;
	struct vmp_hint_ring ring;
	int64_t ret;

	if (!PyArg_ParseTuple(args, "OO:placement_drain", &ring_object, &table_object) ||
	    !vmp_buffer_get(ring_object, "ring", VMP_UINT8, true, &ring_buffer) ||
	    !vmp_hint_ring_of(&ring_buffer, &ring) ||
	    !vmp_buffer_get(table_object, "table", VMP_UINT64, true, &table))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	ret = vmp_hint_drain(&ring, table.u64, table.count / VMP_HINT_COLUMNS);
	Py_END_ALLOW_THREADS
	if (ret < 0)
		return vmp_result(ret);
	return Py_BuildValue("(LKK)", (long long)ret, ring.header->lost, ring.header->armed);
}
