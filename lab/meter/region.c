/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "region.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "magic.h"

/*
 * A vCPU that stays silent for so many VMRUNs is no longer taken for what it said.  Not a time, so that a
 * pause, a slow emulator and a restore forget nothing: a busy vCPU makes some thousands a second.
 */
#define RUNS_UNTIL_FORGOTTEN 200000
#define PROBES_MAX 32

struct vmp_meter_region *vmp_region_map(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct stat status;
	void *ret = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &status) &&
	    ((unsigned long)status.st_size >= VMP_METER_REGION_BYTES || !ftruncate(fd, VMP_METER_REGION_BYTES)))
		ret = mmap(NULL, VMP_METER_REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return ret == MAP_FAILED ? NULL : ret;
}

void vmp_region_describe(struct vmp_meter_region *region, const struct vmp_meter_machine *machine)
{
	struct vmp_meter_header *header = &region->header;
	uint32_t sequence;

	if (header->magic == VMP_METER_MAGIC && header->abi == VMP_METER_ABI &&
	    !memcmp(&header->machine, machine, sizeof(*machine)))
		return;

	if (header->magic != VMP_METER_MAGIC || header->abi != VMP_METER_ABI)
		memset(region, 0, sizeof(*region));

	/* The fences keep the description between the two numbers for a reader that compares them. */
	sequence = header->sequence | 1;
	header->sequence = sequence;
	atomic_thread_fence(memory_order_seq_cst);
	header->abi = VMP_METER_ABI;
	header->cpus_offset = offsetof(struct vmp_meter_region, cpus);
	header->cpu_bytes = sizeof(struct vmp_meter_cpu);
	header->machine = *machine;
	header->magic = VMP_METER_MAGIC;
	atomic_thread_fence(memory_order_seq_cst);
	header->sequence = sequence + 1;
}

static uint32_t first_probe(uint64_t vmcb)
{
	return (uint32_t)((vmcb >> 12) * 2654435761U) % VMP_METER_VMCBS;
}

static struct vmp_meter_identity *find_identity(struct vmp_meter_region *region, uint64_t vmcb)
{
	uint32_t at = first_probe(vmcb);

	for (int i = 0; i < PROBES_MAX; i++, at = (at + 1) % VMP_METER_VMCBS) {
		struct vmp_meter_identity *identity = &region->identities[at];
		uint64_t known = __atomic_load_n(&identity->vmcb, __ATOMIC_ACQUIRE);

		if (known == vmcb)
			return identity;
		if (!known)
			break;
	}
	return NULL;
}

uint32_t vmp_region_run(struct vmp_meter_region *region, uint64_t vmcb)
{
	struct vmp_meter_identity *identity = find_identity(region, vmcb);

	/* One CPU runs a VMCB at a time, so this count has one writer. */
	if (!identity || identity->runs >= RUNS_UNTIL_FORGOTTEN)
		return VMP_GUEST_UNKNOWN;
	identity->runs++;
	return identity->guest % VMP_METER_GUESTS;
}

void vmp_region_identify(struct vmp_meter_region *region, uint64_t vmcb, uint32_t guest)
{
	struct vmp_meter_identity *identity = find_identity(region, vmcb);
	uint32_t at = first_probe(vmcb);

	for (int i = 0; !identity && i < PROBES_MAX; i++, at = (at + 1) % VMP_METER_VMCBS) {
		struct vmp_meter_identity *candidate = &region->identities[at];

		if (!candidate->vmcb || candidate->runs >= RUNS_UNTIL_FORGOTTEN)
			identity = candidate;
	}
	if (!identity)
		return;

	identity->guest = guest;
	identity->runs = 0;
	/* Released last: who finds the VMCB sees its guest. */
	__atomic_store_n(&identity->vmcb, vmcb, __ATOMIC_RELEASE);
}

bool vmp_region_is_exit(const struct vmp_meter_region *region, uint64_t address)
{
	for (int i = 0; i < VMP_METER_EXITS; i++) {
		if (address && region->header.exits[i] == address)
			return true;
	}
	return false;
}

bool vmp_region_add_exit(struct vmp_meter_region *region, uint64_t address)
{
	struct vmp_meter_header *header = &region->header;

	if (vmp_region_is_exit(region, address))
		return false;

	header->exits[header->exit_count++ % VMP_METER_EXITS] = address;
	return true;
}
