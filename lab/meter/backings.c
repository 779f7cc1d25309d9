/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fetches.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int node_index_of(const struct vmp_meter_machine *machine, const char *digits)
{
	char *end;
	long nid = strtol(digits, &end, 10);

	if (end == digits || (*end && *end != '\n'))
		return -1;
	for (uint32_t i = 0; i < machine->node_count; i++) {
		if (machine->nids[i] == nid)
			return (int)i;
	}
	return -1;
}

void vmp_backings_read(FILE *maps, const char *prefix, const struct vmp_meter_machine *machine,
		       struct vmp_backings *ret)
{
	char *line = NULL;
	size_t size = 0;

	ret->count = 0;
	while (ret->count < VMP_BACKINGS_MAX && getline(&line, &size, maps) > 0) {
		struct vmp_backing *backing = &ret->backings[ret->count];
		const char *path = strstr(line, prefix);
		int index = path ? node_index_of(machine, path + strlen(prefix)) : -1;

		if (index < 0 || sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &backing->start, &backing->end) != 2)
			continue;
		backing->node_index = (uint32_t)index;
		ret->count++;
	}
	free(line);
}

int vmp_backings_find(const struct vmp_backings *backings, const void *address)
{
	for (size_t i = 0; i < backings->count; i++) {
		const struct vmp_backing *one = &backings->backings[i];

		if ((uintptr_t)address >= one->start && (uintptr_t)address < one->end)
			return (int)one->node_index;
	}
	return -1;
}
