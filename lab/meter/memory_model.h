/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How long does an access of DRAM take now?  vmplace/model/memory_system.py in C, with the parameters that
 * Python hands over; tests/native/test_memory_model.py holds the two against each other.
 *
 * latency[k][j] + sum of the waits on the way; wait = queue / capacity x rho / (1 - rho), continued along
 * its tangent beyond VMP_MODEL_KNEE.  Times are ns, rates accesses per ns, both of emulated time.
 */
#ifndef VMP_MEMORY_MODEL_H
#define VMP_MEMORY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VMP_MODEL_NODES		16
#define VMP_MODEL_RESOURCES	256
#define VMP_MODEL_VISITS	4096
#define VMP_MODEL_KNEE		0.99
/*
 * Over this time (ns, emulated) rates are smoothed.  Latency and rate answer each other with a delay of one
 * interval; unsmoothed they would swing around a busy resource instead of settling.
 */
#define VMP_MODEL_SMOOTHING_NS	2e6

/* An access between two nodes passes a resource, or this share of such accesses does. */
struct vmp_visit {
	uint32_t from;
	uint32_t to;
	uint32_t resource;
	double share;
};

struct vmp_memory_model {
	double dilation;	/* real ns that one emulated ns takes; 0 = there is no model */
	double mlp;		/* fetches that overlap: one stalls its CPU for latency / mlp */
	double queue;
	uint32_t node_count;
	int32_t nids[VMP_MODEL_NODES];
	uint32_t latency_count;
	double latency[VMP_MODEL_NODES * VMP_MODEL_NODES];	/* unloaded, row-major by node_count */
	uint32_t resource_count;
	double capacity[VMP_MODEL_RESOURCES];
	uint32_t visit_count;
	struct vmp_visit visits[VMP_MODEL_VISITS];
};

typedef double vmp_node_pairs[VMP_MODEL_NODES][VMP_MODEL_NODES];

/*
 * Take one option: nodes=, latency=, capacity=, visits=, queue=, mlp=, dilation= (see arguments.h).
 * Return whether it was understood.
 */
bool vmp_model_parse(struct vmp_memory_model *model, const char *name, size_t name_length, const char *value);

/* Return whether the options fit each other (or none was given). */
bool vmp_model_is_whole(const struct vmp_memory_model *model);

/* Return the index of @nid, or -1. */
int vmp_model_node(const struct vmp_memory_model *model, int32_t nid);

/* Latencies at these rates, by [node of the CPU][node of the memory]. */
void vmp_model_latencies(const struct vmp_memory_model *model, vmp_node_pairs rates, vmp_node_pairs ret);

/* Take in what a CPU accessed on each node in @interval_ns of its time: smooth its @rates. */
void vmp_rates_update(double rates[VMP_MODEL_NODES], const double accesses[VMP_MODEL_NODES], double interval_ns);

#endif /* VMP_MEMORY_MODEL_H */
