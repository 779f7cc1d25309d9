/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "memory_model.h"

#include <string.h>

int vmp_model_node(const struct vmp_memory_model *model, int32_t nid)
{
	for (uint32_t i = 0; i < model->node_count; i++) {
		if (model->nids[i] == nid)
			return (int)i;
	}
	return -1;
}

static double queue_length(double rho)
{
	double below = rho < VMP_MODEL_KNEE ? rho : VMP_MODEL_KNEE;

	return below / (1 - below) + (rho - below) / ((1 - below) * (1 - below));
}

static void waits(const struct vmp_memory_model *model, vmp_node_pairs rates, double ret[VMP_MODEL_RESOURCES])
{
	double asked[VMP_MODEL_RESOURCES] = { 0 };

	for (uint32_t i = 0; i < model->visit_count; i++) {
		const struct vmp_visit *visit = &model->visits[i];

		asked[visit->resource] += rates[visit->from][visit->to] * visit->share;
	}
	for (uint32_t r = 0; r < model->resource_count; r++)
		ret[r] = queue_length(asked[r] / model->capacity[r]) * model->queue / model->capacity[r];
}

void vmp_model_latencies(const struct vmp_memory_model *model, vmp_node_pairs rates, vmp_node_pairs ret)
{
	double waiting[VMP_MODEL_RESOURCES];

	waits(model, rates, waiting);
	for (uint32_t k = 0; k < model->node_count; k++) {
		for (uint32_t j = 0; j < model->node_count; j++)
			ret[k][j] = model->latency[k * model->node_count + j];
	}
	for (uint32_t i = 0; i < model->visit_count; i++) {
		const struct vmp_visit *visit = &model->visits[i];

		ret[visit->from][visit->to] += visit->share * waiting[visit->resource];
	}
}

void vmp_rates_update(double rates[VMP_MODEL_NODES], const double accesses[VMP_MODEL_NODES], double interval_ns)
{
	/* An interval that lasts long says enough by itself. */
	double gain = interval_ns / (interval_ns + VMP_MODEL_SMOOTHING_NS);

	for (uint32_t j = 0; j < VMP_MODEL_NODES; j++)
		rates[j] += gain * (accesses[j] / interval_ns - rates[j]);
}
