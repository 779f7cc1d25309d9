/* What a payload is told to do: the declared access pattern and its text form. */
#ifndef VMP_PATTERN_H
#define VMP_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#define VMP_MAX_VCPUS 64
#define VMP_MAX_RANGES 8
#define VMP_MAX_TOUCHES 32
#define VMP_MAX_PHASES 16
#define VMP_MAX_ARGS 32

enum vmp_order {
	VMP_SEQUENTIAL,
	VMP_RANDOM,
	VMP_ZIPF,
};

/* A piece of the arena, in 64-byte lines. */
struct vmp_range {
	uint64_t first_line;
	uint64_t lines;
};

/*
 * One declared stream of touches.  Each vCPU of @vcpus makes @rate_per_ms
 * touches a millisecond to the lines of its ranges while @phase is current
 * (@phase < 0: always).  @write_percent of them write.  In random and zipf
 * order, @burst touches in a row stay in one 4 KiB page.
 */
struct vmp_touch {
	uint64_t vcpus;
	struct vmp_range ranges[VMP_MAX_RANGES];
	size_t nranges;
	uint64_t lines;
	enum vmp_order order;
	double rate_per_ms;
	unsigned int write_percent;
	uint64_t stride_lines;
	uint64_t burst;
	int phase;
};

/*
 * The whole declaration.  @arena_mib of 0 means "all memory the guest has
 * left".  Each vCPU makes @calls_per_ms calls of random functions of the
 * @library_mib (library.h).  With @wait, touching begins at the command "go".  @run is an optional program (argv, NULL terminated) started beside
 * the touching threads.
 */
struct vmp_pattern {
	unsigned int guest_id;
	uint64_t arena_mib;
	uint64_t seed;
	uint64_t verify_kib_per_s;
	uint64_t library_mib;
	uint64_t calls_per_ms;
	unsigned int tick_ms;
	unsigned int nvcpus;
	int huge_pages;
	int repeat_phases;
	int wait;
	struct vmp_touch touches[VMP_MAX_TOUCHES];
	size_t ntouches;
	uint64_t phase_ms[VMP_MAX_PHASES];
	size_t nphases;
	char *run[VMP_MAX_ARGS + 1];
	size_t nrun;
};

/*
 * Parse white-space separated "key=value" words into @ret.  With @prefixed,
 * only words that start with "vmp." count, as on a kernel command line, where
 * others' words stand beside ours.  Returns 0, or -EINVAL with a sentence in
 * @error.
 */
int vmp_pattern_parse(const char *text, int prefixed, struct vmp_pattern *ret, char *error,
		      size_t error_size);

/* Check that every range lies inside an arena of @lines; 0 or -EINVAL. */
int vmp_pattern_check(const struct vmp_pattern *pattern, uint64_t lines, char *error,
		      size_t error_size);

#endif
