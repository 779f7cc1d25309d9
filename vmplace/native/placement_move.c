/* Move guest frames by the placement fd of a patched KVM: the guest runs on while its pages are copied. */
#include "core.h"
#include "placement_ioctl.h"

#include <time.h>

struct vmp_moves {
	const uint64_t *gfns;
	const int32_t *nids;
	int32_t *npages;
	int32_t *status;
	size_t count;
};

static int64_t vmp_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t vmp_call_move(int fd, uint32_t flags, const struct vmp_moves *io)
{
	_cleanup_free_ struct kvm_placement_move_entry *entries = calloc(io->count + 1, sizeof(*entries));
	struct kvm_placement_move arg = {
		.entries = (uintptr_t)entries, .nr_entries = (uint32_t)io->count, .flags = flags,
	};
	int64_t started, duration;
	size_t i;
	int err;

	if (!entries)
		return -ENOMEM;
	for (i = 0; i < io->count; i++) {
		entries[i].gfn = io->gfns[i];
		entries[i].nid = io->nids[i];
	}

	started = vmp_monotonic_ns();
	err = vmp_ioctl(fd, KVM_PLACEMENT_MOVE, &arg);
	if (err)
		return err;
	duration = vmp_monotonic_ns() - started;

	for (i = 0; i < arg.nr_entries; i++) {
		io->npages[i] = (int32_t)entries[i].npages;
		io->status[i] = (int32_t)entries[i].status;
	}
	return duration;
}

PyObject *vmp_placement_move(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer gfns = { 0 }, nids = { 0 }, npages = { 0 }, status = { 0 };
	PyObject *gfns_object, *nids_object, *npages_object, *status_object;
	struct vmp_moves io;
	unsigned int flags;
	int64_t ret;
	int fd;

	if (!PyArg_ParseTuple(args, "iOOOOI:placement_move", &fd, &gfns_object, &nids_object, &npages_object,
			      &status_object, &flags) ||
	    !vmp_buffer_get(gfns_object, "gfns", VMP_UINT64, false, &gfns) ||
	    !vmp_buffer_get(nids_object, "nids", VMP_INT32, false, &nids) ||
	    !vmp_buffer_get(npages_object, "npages", VMP_INT32, true, &npages) ||
	    !vmp_buffer_get(status_object, "status", VMP_INT32, true, &status) ||
	    !vmp_buffer_same_count(&gfns, "gfns", &nids, "nids") ||
	    !vmp_buffer_same_count(&gfns, "gfns", &npages, "npages") ||
	    !vmp_buffer_same_count(&gfns, "gfns", &status, "status"))
		return NULL;

	io = (struct vmp_moves) { gfns.u64, nids.i32, npages.i32, status.i32, gfns.count };
	Py_BEGIN_ALLOW_THREADS
	ret = vmp_call_move(fd, flags, &io);
	Py_END_ALLOW_THREADS
	return vmp_result(ret);
}
