/* Give guest frames a copy on each of several nodes, by the placement fd, or take the copies back. */
#include "core.h"
#include "placement_ioctl.h"

struct vmp_ranges {
	const uint64_t *gfns;
	const int32_t *npages;
	int32_t *done;
	int32_t *status;
	size_t count;
};

static int64_t vmp_call_ranges(int fd, unsigned long request, uint64_t nodes, const struct vmp_ranges *io)
{
	_cleanup_free_ struct kvm_placement_range *ranges = calloc(io->count + 1, sizeof(*ranges));
	struct kvm_placement_replicate arg = {
		.nodes = nodes, .ranges = (uintptr_t)ranges, .nr_ranges = (uint32_t)io->count,
	};
	size_t i;
	int err;

	if (!ranges)
		return -ENOMEM;
	for (i = 0; i < io->count; i++) {
		ranges[i].gfn = io->gfns[i];
		ranges[i].npages = (uint32_t)io->npages[i];
	}
	err = vmp_ioctl(fd, request, &arg);
	if (err)
		return err;
	for (i = 0; i < io->count; i++) {
		io->done[i] = (int32_t)ranges[i].done;
		io->status[i] = (int32_t)ranges[i].status;
	}
	return arg.nr_ranges;
}

/* @nodes 0 collapses. */
PyObject *vmp_placement_replicate(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer gfns = { 0 }, npages = { 0 }, done = { 0 }, status = { 0 };
	PyObject *gfns_object, *npages_object, *done_object, *status_object;
	unsigned long long nodes;
	struct vmp_ranges io;
	int64_t ret;
	int fd;

	if (!PyArg_ParseTuple(args, "iKOOOO:placement_replicate", &fd, &nodes, &gfns_object, &npages_object,
			      &done_object, &status_object) ||
	    !vmp_buffer_get(gfns_object, "gfns", VMP_UINT64, false, &gfns) ||
	    !vmp_buffer_get(npages_object, "npages", VMP_INT32, false, &npages) ||
	    !vmp_buffer_get(done_object, "done", VMP_INT32, true, &done) ||
	    !vmp_buffer_get(status_object, "status", VMP_INT32, true, &status) ||
	    !vmp_buffer_same_count(&gfns, "gfns", &npages, "npages") ||
	    !vmp_buffer_same_count(&gfns, "gfns", &done, "done") ||
	    !vmp_buffer_same_count(&gfns, "gfns", &status, "status"))
		return NULL;

	io = (struct vmp_ranges) { gfns.u64, npages.i32, done.i32, status.i32, gfns.count };
	Py_BEGIN_ALLOW_THREADS
	ret = vmp_call_ranges(fd, nodes ? KVM_PLACEMENT_REPLICATE : KVM_PLACEMENT_COLLAPSE, nodes, &io);
	Py_END_ALLOW_THREADS
	return vmp_result(ret);
}
