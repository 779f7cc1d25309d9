/* SPDX-License-Identifier: GPL-2.0-or-later */
/* On which node is the code that lies at an address of the emulator? */
#ifndef VMP_METER_FETCHES_H
#define VMP_METER_FETCHES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "abi.h"

#define VMP_BACKINGS_MAX 64

/* Where a part of a node's memory is mapped in the emulator, [start, end). */
struct vmp_backing {
	uintptr_t start;
	uintptr_t end;
	uint32_t node_index;	/* in vmp_meter_machine.nids */
};

struct vmp_backings {
	size_t count;
	struct vmp_backing backings[VMP_BACKINGS_MAX];
};

/*
 * Find in @maps (lines of /proc/PID/maps) the files that are called @prefix and a nid of @machine; what else
 * there is, and more than there is room for, is left out.
 */
void vmp_backings_read(FILE *maps, const char *prefix, const struct vmp_meter_machine *machine,
		       struct vmp_backings *ret);

/* Return the node index of @address, -1 where it is no node's memory: firmware. */
int vmp_backings_find(const struct vmp_backings *backings, const void *address);

#endif /* VMP_METER_FETCHES_H */
