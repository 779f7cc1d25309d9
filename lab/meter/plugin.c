/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Who reads and writes whose memory in the emulated host?
 *
 * 1. Every access, also of nested guests, comes with its host-physical address.
 * 2. What the modelled caches (cache.h) do not hold is a DRAM access; its node follows from its address.
 * 3. It counts in the row of its CPU, for the guest that runs there (identity.c).
 * 4. Instructions count by the node that their code is on (fetches.c).
 * 5. If emulated time is switched on, the CPU pays for it (stall.c).
 *
 * When counting is off, only magic instructions, VMRUN and what follows it are instrumented, so the
 * emulator runs as fast as without the meter; switching makes it translate everything anew.
 *
 * What a helper of the emulator reads without a guest instruction (page walks, DMA) is not seen.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "meter.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

struct vmp_meter meter = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void on_idle(qemu_plugin_id_t id, unsigned int index)
{
	(void)id;
	vmp_cpu_publish(&meter.cpus[index]);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	(void)id;
	/* A restore from a snapshot has everything translated anew, so it is noticed here. */
	pthread_mutex_lock(&meter.lock);
	vmp_region_describe(meter.region, &meter.arguments.machine);
	pthread_mutex_unlock(&meter.lock);

	if (meter.region->header.enabled)
		vmp_fetches_instrument(tb);
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		vmp_identity_instrument(insn);
		if (meter.region->header.enabled)
			vmp_accesses_instrument(insn);
	}
}

static void on_vcpu_init(qemu_plugin_id_t id, unsigned int index)
{
	GArray *registers = qemu_plugin_get_registers();

	(void)id;
	(void)index;
	for (guint i = 0; i < registers->len; i++) {
		const qemu_plugin_reg_descriptor *one = &g_array_index(registers, qemu_plugin_reg_descriptor, i);

		if (!strcmp(one->name, "rax"))
			meter.rax = one->handle;
	}
	g_array_free(registers, TRUE);
}

/* Called at the start, and whenever all vCPUs stand still with no translated code left. */
static void register_callbacks(qemu_plugin_id_t id)
{
	for (int i = 0; i < qemu_plugin_num_vcpus(); i++) {
		vmp_cpu_publish(&meter.cpus[i]);
		vmp_cache_clear(&meter.cpus[i].private_cache);
		vmp_cache_clear(meter.cpus[i].hierarchy.shared_cache);
	}

	qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	if (meter.region->header.enabled)
		qemu_plugin_register_vcpu_idle_cb(id, on_idle);
}

void vmp_meter_retranslate(void)
{
	qemu_plugin_reset(meter.id, register_callbacks);
}

/* CPUs of one node share the cache of the first of them. */
static struct vmp_cache *shared_cache_of(uint32_t cpu)
{
	const int32_t *nids = meter.arguments.machine.cpu_nids;
	uint32_t first = 0;

	while (nids[first] != nids[cpu])
		first++;
	return &meter.shared_caches[first];
}

static int init_cpu(uint32_t index)
{
	const struct vmp_meter_machine *machine = &meter.arguments.machine;
	struct vmp_cpu *cpu = &meter.cpus[index];
	int ret = vmp_cache_init(&cpu->private_cache, &machine->private_cache, false);

	cpu->row = &meter.region->cpus[index];
	vmp_stall_init(cpu, machine->cpu_nids[index]);
	cpu->register_bytes = g_byte_array_new();
	cpu->hierarchy.private_cache = &cpu->private_cache;
	cpu->hierarchy.shared_cache = shared_cache_of(index);
	if (!ret && !cpu->hierarchy.shared_cache->entries)
		ret = vmp_cache_init(cpu->hierarchy.shared_cache, &machine->shared_cache, true);
	return ret;
}

static int init_region(void)
{
	meter.region = vmp_region_map(meter.arguments.shared_path);
	if (!meter.region) {
		fprintf(stderr, "vmpmeter: cannot map %s: %s\n", meter.arguments.shared_path, strerror(errno));
		return -errno;
	}
	/* A file that came with a snapshot goes on where that was taken; a fresh boot has a fresh file. */
	vmp_region_describe(meter.region, &meter.arguments.machine);
	return 0;
}

static int init_pages(void)
{
	const char *path = meter.arguments.pages_path;
	int ret = path ? vmp_page_counts_map(path, &meter.arguments, &meter.pages) : 0;

	if (ret)
		fprintf(stderr, "vmpmeter: cannot map %s: %s\n", path, strerror(-ret));
	return ret;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	int ret = vmp_arguments_parse(argc, argv, &meter.arguments);

	if (!ret && (!info->system_emulation || info->system.max_vcpus > (int)meter.arguments.machine.cpu_count)) {
		fprintf(stderr, "vmpmeter: cpus= must give a node for each vCPU of a whole machine\n");
		ret = -EINVAL;
	}
	if (!ret)
		ret = init_region();
	if (!ret)
		ret = init_pages();
	for (uint32_t i = 0; !ret && i < meter.arguments.machine.cpu_count; i++) {
		ret = init_cpu(i);
		if (ret)
			fprintf(stderr, "vmpmeter: no such cache: %s\n", strerror(-ret));
	}
	if (ret)
		return ret;

	vmp_stall_restart();
	meter.id = id;
	meter.instructions = qemu_plugin_scoreboard_u64(qemu_plugin_scoreboard_new(sizeof(uint64_t)));
	register_callbacks(id);
	return 0;
}
