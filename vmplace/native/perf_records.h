/*
 * The records of a perf ring, without Python, so that a fuzzer can feed it.
 */
#ifndef VMP_PERF_RECORDS_H
#define VMP_PERF_RECORDS_H

#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>

/* What samples are asked for; their layout follows from it (perf_event_open(2)). */
#define VMP_PERF_SAMPLE_TYPE                                                                    \
	(PERF_SAMPLE_TID | PERF_SAMPLE_ADDR | PERF_SAMPLE_CPU | PERF_SAMPLE_WEIGHT |            \
	 PERF_SAMPLE_DATA_SRC | PERF_SAMPLE_PHYS_ADDR)

/* The columns of a table, one after the other, each of @room items, filled from the front. */
enum vmp_perf_column {
	VMP_PERF_COLUMN_PHYS_ADDR,
	VMP_PERF_COLUMN_WEIGHT,
	VMP_PERF_COLUMN_DATA_SRC,
	VMP_PERF_COLUMN_TID,
	VMP_PERF_COLUMN_CPU,
	VMP_PERF_COLUMNS,
};

struct vmp_perf_table {
	uint64_t *items;
	size_t room;
};

struct vmp_perf_counts {
	uint64_t samples;
	uint64_t lost;
	uint64_t throttled;
};

/*
 * Take records from a ring of @size bytes (a power of two), from *@tail to @head, until there are none
 * or the table is full.  *@tail becomes the place of the first record that was not taken.  Returns 0,
 * or -EBADMSG at a record that cannot be, with *@tail = @head.
 */
int vmp_perf_parse(const uint8_t *data, size_t size, uint64_t head, uint64_t *tail,
		   const struct vmp_perf_table *table, struct vmp_perf_counts *counts);

/* Of a trace event whose fields have fixed sizes; the one that is read has 72 bytes. */
#define VMP_PERF_LONGEST 4096UL

/*
 * Copy out the newest records of a ring that the kernel writes from its end to its front and never waits
 * in (attr.write_backward, mapped to be read), the newest first.  @head is read before and after, as data is
 * overwritten meanwhile.  @to has room for @size bytes.  Returns how many bytes of it are good: the last
 * record of them may be cut short.
 */
size_t vmp_perf_copy_newest(const uint8_t *data, size_t size, const uint64_t *head, uint8_t *to);

#endif
