/* What is in a perf ring?  Samples go to a table, losses and throttling are counted, all else is skipped. */
#include "perf_records.h"

#include <errno.h>
#include <string.h>

/* In the order of the bits of VMP_PERF_SAMPLE_TYPE as perf_event_open(2) lists them. */
struct vmp_perf_sample {
	uint32_t pid, tid;
	uint64_t addr;
	uint32_t cpu, reserved;
	uint64_t weight;
	uint64_t data_src;
	uint64_t phys_addr;
};

struct vmp_perf_lost {
	uint64_t id, lost;
};

/* A record may go round the end of the ring. */
static void vmp_perf_copy(const uint8_t *data, size_t size, uint64_t at, void *to, size_t bytes)
{
	size_t first = at & (size - 1);
	size_t before_end = size - first < bytes ? size - first : bytes;

	memcpy(to, data + first, before_end);
	memcpy((uint8_t *)to + before_end, data, bytes - before_end);
}

static void vmp_perf_put(const struct vmp_perf_sample *sample, const struct vmp_perf_table *table,
			 struct vmp_perf_counts *counts)
{
	uint64_t *item = table->items + counts->samples++;

	item[VMP_PERF_COLUMN_PHYS_ADDR * table->room] = sample->phys_addr;
	item[VMP_PERF_COLUMN_WEIGHT * table->room] = sample->weight;
	item[VMP_PERF_COLUMN_DATA_SRC * table->room] = sample->data_src;
	item[VMP_PERF_COLUMN_TID * table->room] = sample->tid;
	item[VMP_PERF_COLUMN_CPU * table->room] = sample->cpu;
}

static void vmp_perf_take(const uint8_t *data, size_t size, uint64_t at, struct perf_event_header header,
			  const struct vmp_perf_table *table, struct vmp_perf_counts *counts)
{
	union {
		struct vmp_perf_sample sample;
		struct vmp_perf_lost lost;
		uint64_t lost_samples;
	} body = { 0 };
	size_t length = header.size - sizeof(header);

	vmp_perf_copy(data, size, at + sizeof(header), &body, length < sizeof(body) ? length : sizeof(body));
	switch (header.type) {
	case PERF_RECORD_SAMPLE:
		if (length == sizeof(body.sample))
			vmp_perf_put(&body.sample, table, counts);
		break;
	case PERF_RECORD_LOST:
		counts->lost += body.lost.lost;
		break;
	case PERF_RECORD_LOST_SAMPLES:
		counts->lost += body.lost_samples;
		break;
	case PERF_RECORD_THROTTLE:
		counts->throttled++;
		break;
	}
}

int vmp_perf_parse(const uint8_t *data, size_t size, uint64_t head, uint64_t *tail,
		   const struct vmp_perf_table *table, struct vmp_perf_counts *counts)
{
	struct perf_event_header header;

	while (*tail != head && counts->samples < table->room) {
		uint64_t left = head - *tail;

		if (left > size || left < sizeof(header))
			goto bad;
		vmp_perf_copy(data, size, *tail, &header, sizeof(header));
		if (header.size < sizeof(header) || header.size > left)
			goto bad;
		vmp_perf_take(data, size, *tail, header, table, counts);
		*tail += header.size;
	}
	return 0;
bad:
	*tail = head;
	return -EBADMSG;
}

size_t vmp_perf_copy_newest(const uint8_t *data, size_t size, const uint64_t *head, uint8_t *to)
{
	/* Pairs with the kernel's barrier: what is behind a visible head is written. */
	uint64_t before = __atomic_load_n(head, __ATOMIC_ACQUIRE), overwritten;
	/* It counts down from 0. */
	size_t count = -before < size ? -before : size;

	vmp_perf_copy(data, size, before, to, count);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	/* One more record may be half written, in front of the head that is visible. */
	overwritten = before - __atomic_load_n(head, __ATOMIC_RELAXED) + VMP_PERF_LONGEST;
	if (overwritten >= size)
		return 0;
	return count < size - overwritten ? count : size - overwritten;
}
