/* Where are pages, and put them elsewhere: move_pages(2) (calls.c). */
#include "calls.h"
#include "core.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

PyObject *vmp_move_pages(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer hvas = { 0 }, nids = { 0 }, status = { 0 };
	PyObject *hvas_object, *nids_object, *status_object;
	int pid, all_owners = 0;
	int64_t ret;

	if (!PyArg_ParseTuple(args, "iOOO|p:move_pages", &pid, &hvas_object, &nids_object, &status_object,
			      &all_owners) ||
	    !vmp_buffer_get(hvas_object, "hvas", VMP_UINT64, false, &hvas) ||
	    !vmp_buffer_get(nids_object, "nids", VMP_INT32, false, &nids) ||
	    !vmp_buffer_get(status_object, "status", VMP_INT32, true, &status) ||
	    !vmp_buffer_same_count(&hvas, "hvas", &nids, "nids") ||
	    !vmp_buffer_same_count(&hvas, "hvas", &status, "status"))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	ret = vmp_call_move_pages(pid, hvas.count, hvas.u64, nids.i32, status.i32,
				  all_owners ? MPOL_MF_MOVE_ALL : MPOL_MF_MOVE);
	Py_END_ALLOW_THREADS
	return vmp_result(ret);
}

PyObject *vmp_page_nids(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer hvas = { 0 }, status = { 0 };
	PyObject *hvas_object, *status_object;
	int64_t ret;
	int pid;

	if (!PyArg_ParseTuple(args, "iOO:page_nids", &pid, &hvas_object, &status_object) ||
	    !vmp_buffer_get(hvas_object, "hvas", VMP_UINT64, false, &hvas) ||
	    !vmp_buffer_get(status_object, "status", VMP_INT32, true, &status) ||
	    !vmp_buffer_same_count(&hvas, "hvas", &status, "status"))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	ret = vmp_call_move_pages(pid, hvas.count, hvas.u64, NULL, status.i32, 0);
	Py_END_ALLOW_THREADS
	if (ret < 0)
		return vmp_result(ret);
	Py_RETURN_NONE;
}

/*
 * Pages faulted in lately wait in per-CPU batches before they get their LRU flag, and the idle bitmap
 * ignores them until then.  Moving one page of this process to the node where it is makes the kernel empty
 * the batches of all CPUs (mm/migrate.c: do_pages_move -> lru_cache_disable, 5.12) and nothing else.
 */
static int vmp_drain_lru_once(void)
{
	int32_t nid = 0, status = 0;
	uint64_t hva;
	void *page = mmap(NULL, VMP_PAGE_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	long ret;

	if (page == MAP_FAILED)
		return -errno;
	hva = (uint64_t)(uintptr_t)page;
	ret = syscall(SYS_move_pages, 0, 1UL, &hva, NULL, &nid, 0);
	if (!ret && nid >= 0)
		ret = syscall(SYS_move_pages, 0, 1UL, &hva, &nid, &status, MPOL_MF_MOVE);
	ret = ret < 0 ? -errno : 0;
	munmap(page, VMP_PAGE_BYTES);
	return (int)ret;
}

PyObject *vmp_drain_lru(PyObject *module, PyObject *unused)
{
	int err;

	Py_BEGIN_ALLOW_THREADS
	err = vmp_drain_lru_once();
	Py_END_ALLOW_THREADS
	if (err < 0)
		return vmp_result(err);
	Py_RETURN_NONE;
}
