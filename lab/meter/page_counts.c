/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "page_counts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t range_pages(const struct vmp_memory_range *range)
{
	return (range->end - range->start) / VMP_PAGE_BYTES;
}

int vmp_page_counts_map(const char *path, const struct vmp_arguments *arguments, struct vmp_page_counts *ret)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	void *counts = MAP_FAILED;
	uint64_t bytes;
	int error;

	if (fd < 0)
		return -errno;
	ret->npages = 0;
	for (uint32_t i = 0; i < arguments->range_count; i++)
		ret->npages += range_pages(&arguments->ranges[i]);
	bytes = ret->npages * sizeof(*ret->counts) * arguments->machine.cpu_count;
	/* Sparse: a page that nobody accesses costs nothing. */
	if (!ftruncate(fd, (off_t)bytes))
		counts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	if (counts == MAP_FAILED)
		return -error;
	ret->counts = counts;
	return 0;
}

void vmp_page_counts_add(const struct vmp_page_counts *pages, const struct vmp_arguments *arguments, uint32_t cpu,
			 uint64_t address)
{
	uint64_t before = cpu * pages->npages;

	for (uint32_t i = 0; i < arguments->range_count; i++) {
		const struct vmp_memory_range *range = &arguments->ranges[i];

		if (address >= range->start && address < range->end) {
			pages->counts[before + (address - range->start) / VMP_PAGE_BYTES]++;
			return;
		}
		before += range_pages(range);
	}
}
