/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which node's memory holds the code that each guest executes?
 *
 * Translated code belongs to a physical page: the emulator looks it up by that page, so that the same address
 * on another one, be it a replica, is translated anew.  A block of instructions therefore has one node for
 * good, that of its first instruction, and needs a look at the address only when it is translated.
 *
 * Before caches: what fetches reach DRAM depends on instruction caches, which are not modelled.
 */
#include "meter.h"

#define NODE_SHIFT 16

static void on_block(unsigned int index, void *data)
{
	uintptr_t what = (uintptr_t)data;

	vmp_add(&vmp_cpu_guest(&meter.cpus[index])->fetched[what >> NODE_SHIFT], what & ((1 << NODE_SHIFT) - 1));
}

/* Memory is mapped after plugins are loaded, and before anything is executed. */
static void find_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");

	meter.backings_known = true;
	if (!maps)
		return;
	vmp_backings_read(maps, meter.arguments.ram_path, &meter.arguments.machine, &meter.backings);
	fclose(maps);
}

void vmp_fetches_instrument(struct qemu_plugin_tb *tb)
{
	const void *code = qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0));
	size_t count = qemu_plugin_tb_n_insns(tb);
	int node;

	if (!meter.arguments.ram_path || !code)
		return;
	pthread_mutex_lock(&meter.lock);
	if (!meter.backings_known)
		find_memory();
	pthread_mutex_unlock(&meter.lock);
	node = vmp_backings_find(&meter.backings, code);
	if (node >= 0)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS,
						     (void *)(((uintptr_t)node << NODE_SHIFT) | count));
}
