/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "arguments.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_number(const char **text, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(*text, &end, 0);
	if (end == *text || errno || **text == '-')
		return false;
	*text = end;
	return true;
}

/* Step over @c if it is next. */
static bool parse_char(const char **text, char c)
{
	if (**text != c)
		return false;
	++*text;
	return true;
}

static bool parse_nid(const char **text, int32_t *ret)
{
	uint64_t nid;

	if (!parse_number(text, &nid) || nid > INT32_MAX)
		return false;
	*ret = (int32_t)nid;
	return true;
}

static bool parse_memory(const char *text, struct vmp_arguments *ret)
{
	do {
		struct vmp_memory_range *range = &ret->ranges[ret->range_count];

		if (ret->range_count++ == VMP_METER_RANGES ||
		    !parse_number(&text, &range->start) || !parse_char(&text, '-') ||
		    !parse_number(&text, &range->end) || !parse_char(&text, '@') ||
		    !parse_nid(&text, &range->nid) || range->start >= range->end)
			return false;
	} while (parse_char(&text, ':'));

	return !*text;
}

static bool parse_cpus(const char *text, struct vmp_meter_machine *ret)
{
	do {
		if (ret->cpu_count == VMP_METER_CPUS || !parse_nid(&text, &ret->cpu_nids[ret->cpu_count++]))
			return false;
	} while (parse_char(&text, ':'));

	return !*text;
}

static bool parse_level(const char *text, struct vmp_meter_level *ret)
{
	uint64_t bytes, ways;

	if (!parse_number(&text, &bytes))
		return false;
	if (parse_char(&text, 'K'))
		bytes <<= 10;
	else if (parse_char(&text, 'M'))
		bytes <<= 20;
	if (!parse_char(&text, '/') || !parse_number(&text, &ways) || *text || bytes > UINT32_MAX ||
	    ways > UINT32_MAX)
		return false;

	*ret = (struct vmp_meter_level) { (uint32_t)bytes, (uint32_t)ways };
	return true;
}

static bool parse_one(const char *argument, struct vmp_arguments *ret)
{
	const char *value = strchr(argument, '=');
	size_t length = value ? (size_t)(value++ - argument) : 0;

#define IS(name) (length == sizeof(name) - 1 && !memcmp(argument, name, length))
	if (IS("shared"))
		return *(ret->shared_path = value) != '\0';
	if (IS("pages"))
		return *(ret->pages_path = value) != '\0';
	if (IS("ram"))
		return *(ret->ram_path = value) != '\0';
	if (IS("memory"))
		return parse_memory(value, ret);
	if (IS("cpus"))
		return parse_cpus(value, &ret->machine);
	if (IS("private"))
		return parse_level(value, &ret->machine.private_cache);
	if (IS("llc"))
		return parse_level(value, &ret->machine.shared_cache);
#undef IS
	return value && vmp_model_parse(&ret->model, argument, length, value);
}

/* Keep the nids ascending and each of them once; a node has an index if it has memory. */
static bool add_nid(struct vmp_meter_machine *machine, int32_t nid)
{
	uint32_t at = 0;

	while (at < machine->node_count && machine->nids[at] < nid)
		at++;
	if (at < machine->node_count && machine->nids[at] == nid)
		return true;
	if (machine->node_count == VMP_METER_NODES)
		return false;

	memmove(&machine->nids[at + 1], &machine->nids[at], (machine->node_count - at) * sizeof(machine->nids[0]));
	machine->nids[at] = nid;
	machine->node_count++;
	return true;
}

static bool index_nodes(struct vmp_arguments *arguments)
{
	struct vmp_meter_machine *machine = &arguments->machine;

	for (uint32_t i = 0; i < arguments->range_count; i++) {
		if (!add_nid(machine, arguments->ranges[i].nid))
			return false;
	}
	for (uint32_t i = 0; i < arguments->range_count; i++) {
		struct vmp_memory_range *range = &arguments->ranges[i];

		while (machine->nids[range->node_index] != range->nid)
			range->node_index++;
	}
	return true;
}

/* Every node that can make or serve an access must have its place in the model, if there is one. */
static bool is_model_of_machine(const struct vmp_arguments *arguments)
{
	const struct vmp_meter_machine *machine = &arguments->machine;

	if (!vmp_model_is_whole(&arguments->model))
		return false;
	for (uint32_t i = 0; arguments->model.dilation && i < machine->cpu_count; i++) {
		if (vmp_model_node(&arguments->model, machine->cpu_nids[i]) < 0)
			return false;
	}
	for (uint32_t i = 0; arguments->model.dilation && i < arguments->range_count; i++) {
		if (vmp_model_node(&arguments->model, arguments->ranges[i].nid) < 0)
			return false;
	}
	return true;
}

int vmp_arguments_parse(int argc, char **argv, struct vmp_arguments *ret)
{
	memset(ret, 0, sizeof(*ret));
	/* Small beside real ones, as the guests of the lab are: working sets must be able to miss. */
	ret->machine.private_cache = (struct vmp_meter_level) { 256 << 10, 8 };
	ret->machine.shared_cache = (struct vmp_meter_level) { 2 << 20, 16 };
	memset(ret->machine.nids, 0xff, sizeof(ret->machine.nids));
	memset(ret->machine.cpu_nids, 0xff, sizeof(ret->machine.cpu_nids));

	for (int i = 0; i < argc; i++) {
		if (!parse_one(argv[i], ret)) {
			fprintf(stderr, "vmpmeter: cannot understand the argument '%s'\n", argv[i]);
			return -EINVAL;
		}
	}
	if (!ret->shared_path || !ret->range_count || !ret->machine.cpu_count) {
		fprintf(stderr, "vmpmeter: needs the arguments shared=, memory= and cpus=\n");
		return -EINVAL;
	}
	if (!is_model_of_machine(ret)) {
		fprintf(stderr, "vmpmeter: the arguments of the memory model do not fit each other or the machine\n");
		return -EINVAL;
	}
	if (!index_nodes(ret)) {
		fprintf(stderr, "vmpmeter: more than %d memory nodes\n", VMP_METER_NODES);
		return -EINVAL;
	}
	return 0;
}
