/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Who runs on each CPU, and what do they tell the meter?
 *
 * VMRUN says which VMCB begins to run, the instruction after it that the host runs again, and the guest
 * itself which guest it is (magic.h).
 */
#include <string.h>

#include "magic.h"
#include "meter.h"

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
	vmp_cpu_publish(cpu);
	cpu->row->vmcb = vmcb;
	cpu->row->guest = guest;
	vmp_stall_enter(cpu, guest != VMP_GUEST_HOST);
}

static void on_vmrun(unsigned int index, void *data)
{
	struct vmp_cpu *cpu = &meter.cpus[index];
	uint64_t vmcb = read_rax(cpu);

	(void)data;
	enter_guest(cpu, vmcb, vmp_region_run(meter.region, vmcb));
	/* A snapshot of a host that knew no meter may have brought translated code behind this VMRUN. */
	if (__atomic_exchange_n(&meter.exit_learnt, false, __ATOMIC_RELAXED))
		vmp_meter_retranslate();
}

static void on_guest_exit(unsigned int index, void *data)
{
	struct vmp_cpu *cpu = &meter.cpus[index];

	(void)data;
	if (cpu->row->vmcb)
		enter_guest(cpu, 0, VMP_GUEST_HOST);
}

static void switch_counting(bool on, bool timed)
{
	struct vmp_meter_header *header = &meter.region->header;

	timed = timed && meter.arguments.model.dilation > 0;
	if (timed && !header->timed)
		vmp_stall_restart();
	header->timed = timed;
	if (header->enabled == on)
		return;
	header->enabled = on;
	header->switches++;
	vmp_meter_retranslate();
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
	uintptr_t opcode = (uintptr_t)data;

	pthread_mutex_lock(&meter.lock);
	switch (opcode) {
	case VMP_MAGIC_ON:
	case VMP_MAGIC_TIME:
	case VMP_MAGIC_OFF:
		switch_counting(opcode != VMP_MAGIC_OFF, opcode == VMP_MAGIC_TIME);
		break;
	case VMP_MAGIC_MARK:
		mark(read_rax(cpu));
		break;
	case VMP_MAGIC_IDENTIFY:
		identify(cpu, read_rax(cpu));
		break;
	case VMP_MAGIC_WORK:
		vmp_add(&vmp_cpu_guest(cpu)->work, read_rax(cpu));
		break;
	}
	pthread_mutex_unlock(&meter.lock);
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
void vmp_identity_instrument(struct qemu_plugin_insn *insn)
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
