/*
 * Which folio does a frame belong to?  /proc/kpageflags, one uint64 a frame.
 *
 * The idle bitmap answers for a folio's head only: a tail reads as 0, which would pass for touched
 * (mm/page_idle.c: page_idle_get_folio, 6.12).  Flags of frames tell heads from tails exactly, whichever
 * way the folio is mapped; PAGEMAP_SCAN's PAGE_IS_HUGE sees only what a PMD maps.
 */
#include "core.h"

#include <errno.h>
#include <linux/kernel-page-flags.h>

#define VMP_FLAG(bit) (UINT64_C(1) << (bit))
/* Below this many frames in a row, two more reads cost more than they may save. */
#define VMP_PROBE_FRAMES 64

/* Frames that no guest owns, or that the idle bitmap never answers for. */
#define VMP_FOREIGN (VMP_FLAG(KPF_NOPAGE) | VMP_FLAG(KPF_ZERO_PAGE))
#define VMP_UNTRACKED VMP_FLAG(KPF_HUGE)

struct vmp_folio_scan {
	int fd;
	uint64_t *pfns;
	uint64_t *heads;
	size_t count;
};

static int vmp_read_flags(int fd, uint64_t pfn, size_t frames, uint64_t *ret)
{
	ssize_t got = vmp_pread_full(fd, ret, frames * sizeof(uint64_t), (off_t)(pfn * sizeof(uint64_t)));

	if (got < 0)
		return (int)got;
	/* Behind the last frame: nothing is there. */
	for (size_t i = (size_t)got / sizeof(uint64_t); i < frames; i++)
		ret[i] = VMP_FLAG(KPF_NOPAGE);
	return 0;
}

/* How many frames follow each other from @at on, within one 2 MiB block of frames. */
static size_t vmp_run_length(const struct vmp_folio_scan *scan, size_t at)
{
	size_t max = VMP_PAGES_PER_HUGE - scan->pfns[at] % VMP_PAGES_PER_HUGE;
	size_t length = 1;

	while (length < max && at + length < scan->count &&
	       scan->pfns[at + length] == scan->pfns[at] + length)
		length++;
	return length;
}

/*
 * Is one folio behind the 2 MiB block of frames that holds a run?  Folios are naturally aligned, so a head at
 * frame 0 and a tail at frame 256 cannot be two: two reads of a word instead of 512 flags.
 */
static int vmp_is_huge(int fd, uint64_t first, size_t length)
{
	const uint64_t mask = VMP_FLAG(KPF_COMPOUND_HEAD) | VMP_FOREIGN | VMP_UNTRACKED;
	uint64_t head, middle;
	int err;

	if (length < VMP_PROBE_FRAMES)
		return 0;
	err = vmp_read_flags(fd, first, 1, &head);
	if (err || (head & mask) != VMP_FLAG(KPF_COMPOUND_HEAD))
		return err;
	err = vmp_read_flags(fd, first + VMP_PAGES_PER_HUGE / 2, 1, &middle);
	return err ? err : !!(middle & VMP_FLAG(KPF_COMPOUND_TAIL));
}

/* The head of a tail whose head is not in the run: look back, at most over one huge page; 0 if not there. */
static int vmp_find_head(int fd, uint64_t tail, uint64_t *ret)
{
	uint64_t flags[VMP_PAGES_PER_HUGE];
	uint64_t first = tail - tail % VMP_PAGES_PER_HUGE;
	int err = vmp_read_flags(fd, first, (size_t)(tail - first), flags);

	*ret = 0;
	if (err)
		return err;
	for (uint64_t pfn = tail; pfn-- > first;)
		if (!(flags[pfn - first] & VMP_FLAG(KPF_COMPOUND_TAIL))) {
			*ret = flags[pfn - first] & VMP_FLAG(KPF_COMPOUND_HEAD) ? pfn : 0;
			break;
		}
	return 0;
}

static int vmp_run_heads(struct vmp_folio_scan *scan, size_t at, size_t length)
{
	uint64_t flags[VMP_PAGES_PER_HUGE];
	uint64_t first = scan->pfns[at], head = 0;
	int err = vmp_read_flags(scan->fd, first, length, flags);

	for (size_t i = 0; !err && i < length; i++) {
		bool is_tail = flags[i] & VMP_FLAG(KPF_COMPOUND_TAIL);

		if (!is_tail)
			head = first + i;
		else if (!i)
			err = vmp_find_head(scan->fd, first, &head);
		if (flags[i] & VMP_FOREIGN)
			scan->pfns[at + i] = 0;
		scan->heads[at + i] = flags[i] & (VMP_FOREIGN | VMP_UNTRACKED) ? 0 : head;
	}
	return err;
}

static int vmp_scan_folios(struct vmp_folio_scan *scan)
{
	for (size_t at = 0; at < scan->count;) {
		if (!scan->pfns[at]) {
			scan->heads[at++] = 0;
			continue;
		}
		uint64_t first = scan->pfns[at] - scan->pfns[at] % VMP_PAGES_PER_HUGE;
		size_t length = vmp_run_length(scan, at);
		int huge = vmp_is_huge(scan->fd, first, length);
		int err = huge < 0 ? huge : 0;

		for (size_t i = 0; huge > 0 && i < length; i++)
			scan->heads[at + i] = first;
		if (!huge)
			err = vmp_run_heads(scan, at, length);
		if (err)
			return err;
		at += length;
	}
	return 0;
}

PyObject *vmp_folio_heads(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer pfns = { 0 }, heads = { 0 };
	PyObject *pfns_object, *heads_object;
	struct vmp_folio_scan scan = { 0 };
	int err;

	if (!PyArg_ParseTuple(args, "iOO:folio_heads", &scan.fd, &pfns_object, &heads_object) ||
	    !vmp_buffer_get(pfns_object, "pfns", VMP_UINT64, true, &pfns) ||
	    !vmp_buffer_get(heads_object, "heads", VMP_UINT64, true, &heads) ||
	    !vmp_buffer_same_count(&pfns, "pfns", &heads, "heads"))
		return NULL;
	scan.pfns = pfns.u64;
	scan.heads = heads.u64;
	scan.count = pfns.count;

	Py_BEGIN_ALLOW_THREADS
	err = vmp_scan_folios(&scan);
	Py_END_ALLOW_THREADS
	if (err)
		return vmp_result(err);
	Py_RETURN_NONE;
}
