/* Which pages did the vCPUs of which node access and write?  Harvests of the placement fd, as bitmaps. */
#include "core.h"
#include "placement_ioctl.h"

#define VMP_RECORDS 4096
#define VMP_HARVEST_FLAGS (KVM_PLACEMENT_HARVEST_CLEAR | KVM_PLACEMENT_HARVEST_FLUSH)

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
