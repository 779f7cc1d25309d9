/*
 * libFuzzer harness of the parser of perf rings (make fuzz).  Its corpus is tests/data/perf_records, which
 * tests/native/test_perf_ring.py reads, too.
 *
 * Input: position and length of the records (16 bits each), room in the table (8 bits), the ring.
 */
#include "perf_records.h"

#include <stdlib.h>
#include <string.h>

#define RING 256
#define ROOM 8

struct input {
	uint16_t at, length;
	uint8_t room, reserved[3];
};

static void parse(const struct input *input, const uint8_t *ring)
{
	uint64_t items[VMP_PERF_COLUMNS * ROOM];
	struct vmp_perf_table table = { items, input->room % (ROOM + 1) };
	struct vmp_perf_counts counts = { 0 };
	uint64_t tail = input->at, head = tail + input->length;
	int result = vmp_perf_parse(ring, RING, head, &tail, &table, &counts);

	if (counts.samples > table.room || tail > head || (result && tail != head))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input;
	uint8_t *ring;

	if (size < sizeof(input))
		return 0;
	memcpy(&input, data, sizeof(input));
	/* On the heap, where the sanitizer sees a byte too many. */
	ring = calloc(1, RING);
	if (!ring)
		return 0;
	memcpy(ring, data + sizeof(input), size - sizeof(input) < RING ? size - sizeof(input) : RING);
	parse(&input, ring);
	free(ring);
	return 0;
}
