/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which accesses reach DRAM, where, and for whom do they count? */
#include "magic.h"
#include "meter.h"

#define PUBLISH_EVERY 1024	/* accesses */
#define PAGE_BYTES 4096
#define ACCESS_BYTES_MAX 16	/* wider ones come in parts */

void vmp_cpu_publish(struct vmp_cpu *cpu)
{
	uint64_t executed = qemu_plugin_u64_get(meter.instructions, (unsigned int)(cpu - meter.cpus));

	vmp_add(&vmp_cpu_guest(cpu)->instructions, executed - cpu->published);
	cpu->published = executed;
	vmp_stall_publish(cpu);
}

static const struct vmp_memory_range *find_range(uint64_t address)
{
	for (uint32_t i = 0; i < meter.arguments.range_count; i++) {
		const struct vmp_memory_range *range = &meter.arguments.ranges[i];

		if (address >= range->start && address < range->end)
			return range;
	}
	return NULL;
}

static void count_line(struct vmp_meter_dram *dram, bool write)
{
	vmp_add(write ? &dram->writes : &dram->reads, 1);
}

static void count_dram(struct vmp_cpu *cpu, const struct vmp_dram_access *access)
{
	const struct vmp_memory_range *range = find_range(access->line * VMP_METER_LINE_BYTES);
	uint32_t guest;

	if (!range) {
		vmp_add(&cpu->row->unplaced, 1);
		return;
	}
	guest = VMP_GUEST_OF(access->guest);
	count_line(&cpu->row->guests[guest].dram[range->node_index], access->write);
	if (access->guest & VMP_OF_KERNEL)
		count_line(&cpu->row->guests[guest].kernel[range->node_index], access->write);
	/* The host's clock is not dilated: its ticks would weigh so many times what they do. */
	if (meter.region->header.timed)
		vmp_stall_charge(cpu, range->nid, !access->write && guest != VMP_GUEST_HOST);
}

static void fetch_line(struct vmp_cpu *cpu, uint64_t line, uint32_t guest, bool store)
{
	struct vmp_dram_access accesses[VMP_DRAM_ACCESSES_MAX];
	unsigned int count = vmp_hierarchy_miss(&cpu->hierarchy, line, guest, store, accesses);

	for (unsigned int i = 0; i < count; i++)
		count_dram(cpu, &accesses[i]);
}

/*
 * Of an access that goes on in the next line, count that one, too.  Over a page's end it is another page,
 * whose address is not known.
 */
static void access_next_line(struct vmp_cpu *cpu, uint64_t address, unsigned int bytes, uint32_t who, bool store)
{
	uint64_t line = (address + bytes - 1) / VMP_METER_LINE_BYTES;

	if (line == address / VMP_METER_LINE_BYTES)
		return;
	if (line % (PAGE_BYTES / VMP_METER_LINE_BYTES) == 0)
		vmp_add(&cpu->row->unseen, 1);
	else if (!vmp_cache_touch(&cpu->private_cache, line, who, store))
		fetch_line(cpu, line, who, store);
}

/* The path of every access: its nanoseconds are what metering costs. */
static inline void on_access(unsigned int index, qemu_plugin_meminfo_t info, uint64_t vaddr, bool store)
{
	struct qemu_plugin_hwaddr *hwaddr = qemu_plugin_get_hwaddr(info, vaddr);
	struct vmp_cpu *cpu = &meter.cpus[index];
	uint32_t guest = cpu->row->guest % VMP_METER_GUESTS;
	struct vmp_meter_guest *counters = &cpu->row->guests[guest];
	uint32_t who = guest | (vaddr >> 63 ? VMP_OF_KERNEL : 0);
	uint64_t address;

	if (!hwaddr) {
		vmp_add(&cpu->row->unseen, 1);
		return;
	}

	address = qemu_plugin_hwaddr_phys_addr(hwaddr);
	if (meter.pages.counts)
		vmp_page_counts_add(&meter.pages, &meter.arguments, index, address);
	if (!vmp_cache_touch(&cpu->private_cache, address / VMP_METER_LINE_BYTES, who, store)) {
		if (qemu_plugin_hwaddr_is_io(hwaddr))
			return;
		fetch_line(cpu, address / VMP_METER_LINE_BYTES, who, store);
	}
	if (address % VMP_METER_LINE_BYTES > VMP_METER_LINE_BYTES - ACCESS_BYTES_MAX)
		access_next_line(cpu, address, 1U << qemu_plugin_mem_size_shift(info), who, store);

	vmp_add(store ? &counters->stores : &counters->loads, 1);
	if (++cpu->accesses % PUBLISH_EVERY == 0)
		vmp_cpu_publish(cpu);
}

static void on_load(unsigned int index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *data)
{
	(void)data;
	on_access(index, info, vaddr, false);
}

static void on_store(unsigned int index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *data)
{
	(void)data;
	on_access(index, info, vaddr, true);
}

void vmp_accesses_instrument(struct qemu_plugin_insn *insn)
{
	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							    meter.instructions, 1);
	qemu_plugin_register_vcpu_mem_cb(insn, on_load, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R, NULL);
	qemu_plugin_register_vcpu_mem_cb(insn, on_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, NULL);
}
