/*
 * The placement fd of a patched KVM (kvm-patches/): how it is opened, what a VM is made of, its node roots.
 * The structures are those of kvm-patches/kvm_placement.h, which is the kernel's own header.
 */
#include "core.h"
#include "placement_ioctl.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void vmp_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define _cleanup_close_ __attribute__((cleanup(vmp_close)))

/* Whether @fd, which is ours, is a VM: its number may have come to mean another file of its owner meanwhile. */
static int vmp_check_is_vm(int fd)
{
	static const char wanted[] = "anon_inode:kvm-vm";
	char link[32], target[sizeof(wanted)];
	ssize_t length;

	/* A thread that does steps has a file table of its own (step_thread.py). */
	snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", fd);
	length = readlink(link, target, sizeof(target));
	if (length < 0)
		return -errno;
	return length == sizeof(wanted) - 1 && !memcmp(target, wanted, sizeof(wanted) - 1) ? 0 : -EBADF;
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
	/* No other file may get an ioctl that it takes for something else. */
	ret = vmp_check_is_vm(borrowed);
	if (ret < 0)
		return ret;
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
