/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How is the memory model written on the emulator's command line?  Lists of numbers, separated by ':'. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory_model.h"

static bool parse_real(const char **text, double *ret)
{
	char *end;

	*ret = strtod(*text, &end);
	if (end == *text || !isfinite(*ret) || *ret < 0 || **text == '-')
		return false;
	*text = end;
	return true;
}

static bool parse_index(const char **text, uint32_t limit, uint32_t *ret)
{
	char *end;
	unsigned long number = strtoul(*text, &end, 10);

	if (end == *text || number >= limit)
		return false;
	*text = end;
	*ret = (uint32_t)number;
	return true;
}

static bool parse_positive(const char *text, double *ret)
{
	return parse_real(&text, ret) && !*text && *ret > 0;
}

static bool parse_reals(const char *text, double *values, uint32_t limit, uint32_t *count)
{
	for (*count = 0; *count < limit; text++) {
		if (!parse_real(&text, &values[(*count)++]))
			return false;
		if (*text != ':')
			return !*text;
	}
	return false;
}

static bool parse_nodes(const char *text, struct vmp_memory_model *model)
{
	for (model->node_count = 0; model->node_count < VMP_MODEL_NODES; text++) {
		uint32_t nid;

		if (!parse_index(&text, INT32_MAX, &nid))
			return false;
		model->nids[model->node_count++] = (int32_t)nid;
		if (*text != ':')
			return !*text;
	}
	return false;
}

static bool parse_char(const char **text, char c)
{
	return *(*text)++ == c;
}

static bool parse_visit(const char **text, struct vmp_visit *ret)
{
	return parse_index(text, VMP_MODEL_NODES, &ret->from) && parse_char(text, '-') &&
	       parse_index(text, VMP_MODEL_NODES, &ret->to) && parse_char(text, '-') &&
	       parse_index(text, VMP_MODEL_RESOURCES, &ret->resource) && parse_char(text, '-') &&
	       parse_real(text, &ret->share);
}

static bool parse_visits(const char *text, struct vmp_memory_model *model)
{
	for (model->visit_count = 0; model->visit_count < VMP_MODEL_VISITS; text++) {
		if (!parse_visit(&text, &model->visits[model->visit_count++]))
			return false;
		if (*text != ':')
			return !*text;
	}
	return false;
}

bool vmp_model_parse(struct vmp_memory_model *model, const char *name, size_t name_length, const char *value)
{
#define IS(option) (name_length == sizeof(option) - 1 && !memcmp(name, option, name_length))
	if (IS("nodes"))
		return parse_nodes(value, model);
	if (IS("latency"))
		return parse_reals(value, model->latency, VMP_MODEL_NODES * VMP_MODEL_NODES, &model->latency_count);
	if (IS("capacity"))
		return parse_reals(value, model->capacity, VMP_MODEL_RESOURCES, &model->resource_count);
	if (IS("visits"))
		return parse_visits(value, model);
	if (IS("queue"))
		return parse_positive(value, &model->queue);
	if (IS("mlp"))
		return parse_positive(value, &model->mlp);
	if (IS("dilation"))
		return parse_positive(value, &model->dilation);
#undef IS
	return false;
}

static bool are_visits_inside(const struct vmp_memory_model *model)
{
	for (uint32_t i = 0; i < model->visit_count; i++) {
		const struct vmp_visit *visit = &model->visits[i];

		if (visit->from >= model->node_count || visit->to >= model->node_count ||
		    visit->resource >= model->resource_count || !(model->capacity[visit->resource] > 0))
			return false;
	}
	return true;
}

bool vmp_model_is_whole(const struct vmp_memory_model *model)
{
	if (!model->dilation && !model->node_count && !model->latency_count && !model->resource_count)
		return true;

	return model->dilation > 0 && model->mlp > 0 && model->queue > 0 && model->node_count &&
	       model->latency_count == model->node_count * model->node_count && model->visit_count &&
	       are_visits_inside(model);
}
