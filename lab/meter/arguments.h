/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the emulator's command line tells the meter about the machine. */
#ifndef VMP_METER_ARGUMENTS_H
#define VMP_METER_ARGUMENTS_H

#include <stdint.h>

#include "abi.h"
#include "memory_model.h"

#define VMP_METER_RANGES 64

/* Host-physical memory of one node, [start, end); a node may have several. */
struct vmp_memory_range {
	uint64_t start;
	uint64_t end;
	int32_t nid;
	uint32_t node_index;	/* of @nid in vmp_meter_machine.nids */
};

struct vmp_arguments {
	const char *shared_path;
	const char *pages_path;	/* NULL: count no pages */
	const char *ram_path;	/* NULL: count no fetches */
	uint32_t range_count;
	struct vmp_memory_range ranges[VMP_METER_RANGES];
	struct vmp_meter_machine machine;
	struct vmp_memory_model model;
};

/*
 * Parse "name=value" strings:
 *
 *	shared=PATH		the backing file of the ivshmem device
 *	memory=START-END@NID:...	numbers as C writes them
 *	cpus=NID:NID:...	the node of each vCPU, in the order of their indexes
 *	private=SIZE/WAYS	SIZE in bytes, or with suffix K or M; default 256K/8
 *	llc=SIZE/WAYS		default 2M/16
 *	pages=PATH		count each page's accesses there (page_counts.h); slower
 *	ram=PREFIX		the file of node N's memory is PREFIX followed by N (fetches.h)
 *
 * and for emulated time, all of them or none (memory_model.h says what they mean):
 *
 *	nodes=NID:NID:...	nodes with CPUs or memory; the others number nodes by their place here
 *	latency=NS:NS:...	row by row, CPU node by memory node
 *	capacity=RATE:RATE:...	of each resource, accesses per ns
 *	visits=FROM-TO-RESOURCE-SHARE:...
 *	queue=N mlp=N dilation=N
 *
 * Return 0, or -EINVAL after saying on stderr which argument is wrong.
 */
int vmp_arguments_parse(int argc, char **argv, struct vmp_arguments *ret);

#endif /* VMP_METER_ARGUMENTS_H */
