/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Who reads and writes whose memory in the emulated host?
 *
 * 1. Every access, also of nested guests, comes with its host-physical address.
 * 2. What the modelled caches (cache.h) do not hold is a DRAM access; its node follows from its address.
 * 3. It counts in the row of its CPU, for the guest that runs there: VMRUN says which VMCB begins to run, the
 *    instruction after it that the host runs again, and the guest itself which guest it is (magic.h).
 *
 * When counting is off, only magic instructions, VMRUN and what follows it are instrumented, so the
 * emulator runs as fast as without the meter; switching makes it translate everything anew.
 *
 * What a helper of the emulator reads without a guest instruction (page walks, DMA) is not seen.
 */
#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <qemu-plugin.h>

#include "abi.h"
#include "arguments.h"
#include "cache.h"
#include "magic.h"
#include "region.h"

#define PUBLISH_EVERY 1024	/* accesses */
#define PAGE_BYTES 4096
#define ACCESS_BYTES_MAX 16	/* wider ones come in parts */

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Private to the thread of one vCPU; the alignment keeps others off its lines. */
struct vmp_cpu {
	struct vmp_meter_cpu *row;
	struct vmp_hierarchy hierarchy;
	struct vmp_cache private_cache;
	uint64_t published;	/* of the instruction count */
	uint32_t accesses;
	GByteArray *register_bytes;
} __attribute__((aligned(128)));

static struct {
	qemu_plugin_id_t id;
	struct vmp_arguments arguments;
	struct vmp_meter_region *region;
	struct qemu_plugin_register *rax;
	qemu_plugin_u64 instructions;
	pthread_mutex_t lock;	/* of the header and the identities */
	bool exit_learnt;	/* but code translated before may lack its callback */
	struct vmp_cpu cpus[VMP_METER_CPUS];
	struct vmp_cache shared_caches[VMP_METER_CPUS];
} meter = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void register_callbacks(qemu_plugin_id_t id);

/* The one writer of @counter is the calling thread, so no locked instruction is needed. */
static void add(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, *counter + value, __ATOMIC_RELAXED);
}

static struct vmp_meter_guest *current_guest(const struct vmp_cpu *cpu)
{
	/* The region can be written from inside the emulated host: trust no index from it. */
	return &cpu->row->guests[cpu->row->guest % VMP_METER_GUESTS];
}

/* Count the instructions since the last time for the guest that executed them. */
static void publish_instructions(struct vmp_cpu *cpu)
{
	uint64_t executed = qemu_plugin_u64_get(meter.instructions, (unsigned int)(cpu - meter.cpus));

	add(&current_guest(cpu)->instructions, executed - cpu->published);
	cpu->published = executed;
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

/* The place where emulated time will be charged to the CPU: every DRAM access comes by here. */
static void count_dram(struct vmp_cpu *cpu, const struct vmp_dram_access *access)
{
	const struct vmp_memory_range *range = find_range(access->line * VMP_METER_LINE_BYTES);
	struct vmp_meter_dram *dram;

	if (!range) {
		add(&cpu->row->unplaced, 1);
		return;
	}
	dram = &cpu->row->guests[access->guest].dram[range->node_index];
	add(access->write ? &dram->writes : &dram->reads, 1);
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
 * whose address is not known; that half is left out.
 */
static void access_next_line(struct vmp_cpu *cpu, uint64_t address, unsigned int bytes, bool store)
{
	uint64_t line = (address + bytes - 1) / VMP_METER_LINE_BYTES;
	uint32_t guest = cpu->row->guest % VMP_METER_GUESTS;

	if (line != address / VMP_METER_LINE_BYTES && line % (PAGE_BYTES / VMP_METER_LINE_BYTES) &&
	    !vmp_cache_touch(&cpu->private_cache, line, guest, store))
		fetch_line(cpu, line, guest, store);
}

/* The path of every access: its nanoseconds are what metering costs. */
static inline void on_access(unsigned int index, qemu_plugin_meminfo_t info, uint64_t vaddr, bool store)
{
	struct qemu_plugin_hwaddr *hwaddr = qemu_plugin_get_hwaddr(info, vaddr);
	struct vmp_cpu *cpu = &meter.cpus[index];
	uint32_t guest = cpu->row->guest % VMP_METER_GUESTS;
	struct vmp_meter_guest *counters = &cpu->row->guests[guest];
	uint64_t address;

	if (!hwaddr)
		return;

	address = qemu_plugin_hwaddr_phys_addr(hwaddr);
	if (!vmp_cache_touch(&cpu->private_cache, address / VMP_METER_LINE_BYTES, guest, store)) {
		if (qemu_plugin_hwaddr_is_io(hwaddr))
			return;
		fetch_line(cpu, address / VMP_METER_LINE_BYTES, guest, store);
	}
	if (address % VMP_METER_LINE_BYTES > VMP_METER_LINE_BYTES - ACCESS_BYTES_MAX)
		access_next_line(cpu, address, 1U << qemu_plugin_mem_size_shift(info), store);

	add(store ? &counters->stores : &counters->loads, 1);
	if (++cpu->accesses % PUBLISH_EVERY == 0)
		publish_instructions(cpu);
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

static uint64_t read_rax(struct vmp_cpu *cpu)
{
	uint64_t value = 0;

	g_byte_array_set_size(cpu->register_bytes, 0);
	if (qemu_plugin_read_register(meter.rax, cpu->register_bytes) >= (int)sizeof(value))
		memcpy(&value, cpu->register_bytes->data, sizeof(value));
	return value;
}

static void enter_guest(struct vmp_cpu *cpu, uint64_t vmcb, uint32_t guest)
{
	publish_instructions(cpu);
	cpu->row->vmcb = vmcb;
	cpu->row->guest = guest;
}

static void retranslate_all(void)
{
	qemu_plugin_reset(meter.id, register_callbacks);
}

static void on_vmrun(unsigned int index, void *data)
{
	struct vmp_cpu *cpu = &meter.cpus[index];
	uint64_t vmcb = read_rax(cpu);

	(void)data;
	enter_guest(cpu, vmcb, vmp_region_run(meter.region, vmcb));
	/* A snapshot of a host that knew no meter may have brought translated code behind this VMRUN. */
	if (__atomic_exchange_n(&meter.exit_learnt, false, __ATOMIC_RELAXED))
		retranslate_all();
}

static void on_guest_exit(unsigned int index, void *data)
{
	struct vmp_cpu *cpu = &meter.cpus[index];

	(void)data;
	if (cpu->row->vmcb)
		enter_guest(cpu, 0, VMP_GUEST_HOST);
}

static void switch_counting(bool on)
{
	struct vmp_meter_header *header = &meter.region->header;

	if (header->enabled == on)
		return;
	header->enabled = on;
	header->switches++;
	retranslate_all();
}

static void mark(uint64_t value)
{
	struct vmp_meter_header *header = &meter.region->header;

	header->mark = value;
	header->marks++;
}

static void identify(struct vmp_cpu *cpu, uint64_t guest)
{
	if (!cpu->row->vmcb || guest < 1 || guest > VMP_GUEST_MAX)
		return;
	vmp_region_identify(meter.region, cpu->row->vmcb, (uint32_t)guest);
	enter_guest(cpu, cpu->row->vmcb, (uint32_t)guest);
}

static void on_magic(unsigned int index, void *data)
{
	struct vmp_cpu *cpu = &meter.cpus[index];

	pthread_mutex_lock(&meter.lock);
	switch ((uintptr_t)data) {
	case VMP_MAGIC_ON:
	case VMP_MAGIC_OFF:
		switch_counting((uintptr_t)data == VMP_MAGIC_ON);
		break;
	case VMP_MAGIC_MARK:
		mark(read_rax(cpu));
		break;
	case VMP_MAGIC_IDENTIFY:
		identify(cpu, read_rax(cpu));
		break;
	}
	pthread_mutex_unlock(&meter.lock);
}

static void on_idle(qemu_plugin_id_t id, unsigned int index)
{
	(void)id;
	publish_instructions(&meter.cpus[index]);
}

static void learn_exit(uint64_t address)
{
	pthread_mutex_lock(&meter.lock);
	if (vmp_region_add_exit(meter.region, address))
		__atomic_store_n(&meter.exit_learnt, true, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&meter.lock);
}

/* Return the opcode of a magic instruction, 0 if it is none. */
static uintptr_t magic_opcode(const uint8_t *bytes, size_t size)
{
	static const uint8_t nopl[] = { 0x0f, 0x1f, 0x84, 0x00 };
	uint32_t imm;

	if (size != sizeof(nopl) + sizeof(imm) || memcmp(bytes, nopl, sizeof(nopl)))
		return 0;
	memcpy(&imm, bytes + sizeof(nopl), sizeof(imm));
	return imm >> 8 == VMP_MAGIC_TAG ? imm & 0xff : 0;
}

/* Instrument what tells who runs; it is needed at all times, and rare. */
static void instrument_identity(struct qemu_plugin_insn *insn)
{
	static const uint8_t vmrun[] = { 0x0f, 0x01, 0xd8 };
	uint64_t vaddr = qemu_plugin_insn_vaddr(insn);
	uint8_t bytes[8];
	size_t size = qemu_plugin_insn_data(insn, bytes, sizeof(bytes));
	uintptr_t opcode = magic_opcode(bytes, size);

	if (vmp_region_is_exit(meter.region, vaddr))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_guest_exit, QEMU_PLUGIN_CB_NO_REGS, NULL);
	if (opcode)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_magic, QEMU_PLUGIN_CB_R_REGS, (void *)opcode);
	if (size == sizeof(vmrun) && !memcmp(bytes, vmrun, sizeof(vmrun))) {
		learn_exit(vaddr + sizeof(vmrun));
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_vmrun, QEMU_PLUGIN_CB_R_REGS, NULL);
	}
}

static void instrument_accesses(struct qemu_plugin_insn *insn)
{
	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							    meter.instructions, 1);
	qemu_plugin_register_vcpu_mem_cb(insn, on_load, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R, NULL);
	qemu_plugin_register_vcpu_mem_cb(insn, on_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, NULL);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	(void)id;
	/* A restore from a snapshot has everything translated anew, so it is noticed here. */
	pthread_mutex_lock(&meter.lock);
	vmp_region_describe(meter.region, &meter.arguments.machine);
	pthread_mutex_unlock(&meter.lock);

	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		instrument_identity(insn);
		if (meter.region->header.enabled)
			instrument_accesses(insn);
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
		publish_instructions(&meter.cpus[i]);
		vmp_cache_clear(&meter.cpus[i].private_cache);
		vmp_cache_clear(meter.cpus[i].hierarchy.shared_cache);
	}

	qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	if (meter.region->header.enabled)
		qemu_plugin_register_vcpu_idle_cb(id, on_idle);
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

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	int ret = vmp_arguments_parse(argc, argv, &meter.arguments);

	if (!ret && (!info->system_emulation || info->system.max_vcpus > (int)meter.arguments.machine.cpu_count)) {
		fprintf(stderr, "vmpmeter: cpus= must give a node for each vCPU of a whole machine\n");
		ret = -EINVAL;
	}
	if (!ret)
		ret = init_region();
	for (uint32_t i = 0; !ret && i < meter.arguments.machine.cpu_count; i++) {
		ret = init_cpu(i);
		if (ret)
			fprintf(stderr, "vmpmeter: no such cache: %s\n", strerror(-ret));
	}
	if (ret)
		return ret;

	meter.id = id;
	meter.instructions = qemu_plugin_scoreboard_u64(qemu_plugin_scoreboard_new(sizeof(uint64_t)));
	register_callbacks(id);
	return 0;
}
