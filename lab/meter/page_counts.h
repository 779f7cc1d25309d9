/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How often was each page accessed, before any cache?  The truth for what samples pages. */
#ifndef VMP_PAGE_COUNTS_H
#define VMP_PAGE_COUNTS_H

#include <stdint.h>

#include "arguments.h"

#define VMP_PAGE_BYTES 4096

/*
 * @counts holds a row for each CPU, and in it a counter for each page of the nodes' memory: all pages of the
 * first range of arguments.ranges, then those of the second.  A counter has one writer and may wrap.
 */
struct vmp_page_counts {
	uint32_t *counts;	/* NULL: nobody asked */
	uint64_t npages;	/* in a row */
};

/* Map a file of zeros at @path; 0, or -errno. */
int vmp_page_counts_map(const char *path, const struct vmp_arguments *arguments, struct vmp_page_counts *ret);

/* Count an access of @cpu; what is in no node's memory does not count. */
void vmp_page_counts_add(const struct vmp_page_counts *pages, const struct vmp_arguments *arguments, uint32_t cpu,
			 uint64_t address);

#endif /* VMP_PAGE_COUNTS_H */
