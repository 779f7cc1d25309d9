/*
 * The placement fd of a patched KVM (kvm-patches/): what a VM is made of, its node roots, harvests, replicas.
 * The structures are those of kvm-patches/kvm_placement.h, which is the kernel's own header.
 */
#include "core.h"

#include <errno.h>
#include <kvm_placement.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VMP_RECORDS 4096
#define VMP_HARVEST_FLAGS (KVM_PLACEMENT_HARVEST_CLEAR | KVM_PLACEMENT_HARVEST_FLUSH)

static void vmp_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static void vmp_free(void *pointer)
{
	free(*(void **)pointer);
}

#define _cleanup_close_ __attribute__((cleanup(vmp_close)))
#define _cleanup_free_ __attribute__((cleanup(vmp_free)))

static int vmp_ioctl(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

/* Borrow descriptor @vm_fd of process @pid for the one ioctl that KVM allows to foreigners. */
static int vmp_open_placement(int pid, int vm_fd)
{
	_cleanup_close_ int pidfd = -1, borrowed = -1;
	int ret;

	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	borrowed = (int)syscall(SYS_pidfd_getfd, pidfd, vm_fd, 0);
	if (borrowed < 0)
		return -errno;
	ret = ioctl(borrowed, KVM_CREATE_PLACEMENT_FD, 0);
	return ret < 0 ? -errno : ret;
}

PyObject *vmp_placement_open(PyObject *module, PyObject *args)
{
	int pid, vm_fd, ret;

	if (!PyArg_ParseTuple(args, "ii:placement_open", &pid, &vm_fd))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	ret = vmp_open_placement(pid, vm_fd);
	Py_END_ALLOW_THREADS
	return vmp_result(ret);
}

static PyObject *vmp_slots(const struct kvm_placement_slot *slots, size_t count)
{
	PyObject *list = PyList_New((Py_ssize_t)count);
	size_t i;

	for (i = 0; list && i < count; i++) {
		PyObject *slot = Py_BuildValue("(KKKIII)", slots[i].base_gfn, slots[i].npages, slots[i].hva,
					       slots[i].slot, slots[i].flags, slots[i].backing);

		if (!slot || PyList_SetItem(list, (Py_ssize_t)i, slot) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *vmp_vcpus(const struct kvm_placement_vcpu *vcpus, size_t count)
{
	PyObject *list = PyList_New((Py_ssize_t)count);
	size_t i;

	for (i = 0; list && i < count; i++) {
		PyObject *vcpu = Py_BuildValue("(Iii)", vcpus[i].vcpu_id, vcpus[i].tid, vcpus[i].nid);

		if (!vcpu || PyList_SetItem(list, (Py_ssize_t)i, vcpu) < 0)
			Py_CLEAR(list);
	}
	return list;
}

/* Ask until the arrays are large enough for what is there. */
static int vmp_read_info(int fd, struct kvm_placement_info *ret, struct kvm_placement_slot **slots,
			 struct kvm_placement_vcpu **vcpus)
{
	uint32_t nr_slots = 64, nr_vcpus = 64;
	int err;

	for (;;) {
		void *more_slots = reallocarray(*slots, nr_slots, sizeof(**slots));
		void *more_vcpus = reallocarray(*vcpus, nr_vcpus, sizeof(**vcpus));

		*slots = more_slots ? more_slots : *slots;
		*vcpus = more_vcpus ? more_vcpus : *vcpus;
		if (!more_slots || !more_vcpus)
			return -ENOMEM;
		*ret = (struct kvm_placement_info) {
			.slots = (uintptr_t)*slots, .vcpus = (uintptr_t)*vcpus,
			.nr_slots = nr_slots, .nr_vcpus = nr_vcpus,
		};
		err = vmp_ioctl(fd, KVM_PLACEMENT_INFO, ret);
		if (err || (ret->nr_slots <= nr_slots && ret->nr_vcpus <= nr_vcpus))
			return err;
		nr_slots = ret->nr_slots;
		nr_vcpus = ret->nr_vcpus;
	}
}

PyObject *vmp_placement_info(PyObject *module, PyObject *args)
{
	_cleanup_free_ struct kvm_placement_slot *slots = NULL;
	_cleanup_free_ struct kvm_placement_vcpu *vcpus = NULL;
	struct kvm_placement_info info;
	PyObject *slot_list, *vcpu_list;
	int fd, err;

	if (!PyArg_ParseTuple(args, "i:placement_info", &fd))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	err = vmp_read_info(fd, &info, &slots, &vcpus);
	Py_END_ALLOW_THREADS
	if (err < 0)
		return vmp_result(err);

	slot_list = vmp_slots(slots, info.nr_slots);
	vcpu_list = vmp_vcpus(vcpus, info.nr_vcpus);
	if (!slot_list || !vcpu_list) {
		Py_XDECREF(slot_list);
		Py_XDECREF(vcpu_list);
		return NULL;
	}
	return Py_BuildValue("(KKKKINN)", info.features, info.nodes, info.root_nodes, info.pinned_pages,
			     info.vm_flags, slot_list, vcpu_list);
}

PyObject *vmp_placement_roots(PyObject *module, PyObject *args)
{
	struct kvm_placement_roots roots = { 0 };
	unsigned long long nodes;
	int fd, populate, err;

	if (!PyArg_ParseTuple(args, "iKp:placement_roots", &fd, &nodes, &populate))
		return NULL;

	roots.nodes = nodes;
	roots.flags = populate ? KVM_PLACEMENT_ROOTS_POPULATE : 0;
	Py_BEGIN_ALLOW_THREADS
	err = vmp_ioctl(fd, KVM_PLACEMENT_ROOTS, &roots);
	Py_END_ALLOW_THREADS
	return vmp_result(err ? err : (int64_t)roots.copied);
}

/* Bitmaps with a bit per page, a row of @words for each of @nids and a last one for all other nodes. */
struct vmp_harvest {
	const int32_t *nids;
	size_t nr_nids;
	uint64_t *accessed;
	uint64_t *written;
	size_t words;
	/* Page of the bitmaps = gfn + @shift, modulo 2^64. */
	uint64_t shift;
	bool written_known;
};

/* Set bits [at, at + 64) by @mask, as far as the row has them; @at may lie before the row. */
static void vmp_or_mask(uint64_t *row, size_t words, int64_t at, uint64_t mask)
{
	int64_t word = at >> 6;
	unsigned int bit = (unsigned int)(at & 63);

	if (word >= 0 && (size_t)word < words)
		row[word] |= mask << bit;
	if (bit && word + 1 >= 0 && (size_t)(word + 1) < words)
		row[word + 1] |= mask >> (64 - bit);
}

static void vmp_or_record(uint64_t *row, size_t words, int64_t at, unsigned int level, uint64_t mask)
{
	uint64_t npages = level > 1 ? UINT64_C(1) << (9 * (level - 1)) : 0;
	uint64_t page;

	if (!npages) {
		vmp_or_mask(row, words, at, mask);
		return;
	}
	for (page = 0; (mask & 1) && page < npages; page += 64)
		vmp_or_mask(row, words, at + (int64_t)page, ~UINT64_C(0));
}

static size_t vmp_row(const struct vmp_harvest *harvest, int32_t nid)
{
	size_t row = 0;

	while (row < harvest->nr_nids && harvest->nids[row] != nid)
		row++;
	return row;
}

static void vmp_take_record(struct vmp_harvest *harvest, const struct kvm_placement_record *record)
{
	size_t start = vmp_row(harvest, record->nid) * harvest->words;
	int64_t at = (int64_t)(record->gfn + harvest->shift);

	vmp_or_record(harvest->accessed + start, harvest->words, at, record->level, record->accessed);
	vmp_or_record(harvest->written + start, harvest->words, at, record->level, record->dirty);
	if (record->flags & KVM_PLACEMENT_RECORD_DIRTY_UNKNOWN)
		harvest->written_known = false;
}

static int vmp_harvest_range(int fd, uint64_t gfn, uint64_t npages, bool clear, struct vmp_harvest *harvest)
{
	_cleanup_free_ struct kvm_placement_record *records = malloc(VMP_RECORDS * sizeof(*records));
	struct kvm_placement_harvest arg = {
		.gfn = gfn, .npages = npages, .records = (uintptr_t)records,
		.flags = clear ? VMP_HARVEST_FLAGS : 0,
	};
	uint32_t i;
	int err;

	if (!records)
		return -ENOMEM;
	do {
		arg.nr_records = VMP_RECORDS;
		err = vmp_ioctl(fd, KVM_PLACEMENT_HARVEST, &arg);
		/* A signal ends a call early, with a cursor. */
		if (err)
			return err;
		for (i = 0; i < arg.nr_records; i++)
			vmp_take_record(harvest, &records[i]);
	} while (arg.cursor);
	return 0;
}

PyObject *vmp_placement_harvest(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer nids = { 0 }, accessed = { 0 }, written = { 0 };
	PyObject *nids_object, *accessed_object, *written_object;
	struct vmp_harvest harvest = { .written_known = true };
	unsigned long long gfn, npages;
	long long page;
	int fd, clear, err;

	if (!PyArg_ParseTuple(args, "iKKLOOOp:placement_harvest", &fd, &gfn, &npages, &page, &nids_object,
			      &accessed_object, &written_object, &clear) ||
	    !vmp_buffer_get(nids_object, "nids", VMP_INT32, false, &nids) ||
	    !vmp_buffer_get(accessed_object, "accessed", VMP_UINT64, true, &accessed) ||
	    !vmp_buffer_get(written_object, "written", VMP_UINT64, true, &written) ||
	    !vmp_buffer_same_count(&accessed, "accessed", &written, "written"))
		return NULL;

	harvest.nids = nids.i32;
	harvest.nr_nids = nids.count;
	harvest.accessed = accessed.u64;
	harvest.written = written.u64;
	harvest.words = accessed.count / (nids.count + 1);
	harvest.shift = (uint64_t)page - gfn;
	Py_BEGIN_ALLOW_THREADS
	err = vmp_harvest_range(fd, gfn, npages, clear, &harvest);
	Py_END_ALLOW_THREADS
	return err ? vmp_result(err) : PyBool_FromLong(harvest.written_known);
}

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
