/* SPDX-License-Identifier: MIT */
/*
 * The meter's shared region: written by the plugin inside the emulator, read through ivshmem inside the
 * emulated host and through the backing file outside of it.  lab/counters_meter.py holds the
 * same layout as a numpy dtype; a test compares the two.
 *
 * The region is RAM of the emulated machine, so a snapshot saves it and a restore brings it back: it is
 * where all of the meter's state lives that must fit the machine's state (who runs on each CPU, which VMCB
 * belongs to which guest, whether counting is on).  Counters never decrease but by such a restore.
 *
 * Each counter is one aligned 64-bit word with one writer (the CPU of its row), so a reader sees no torn
 * values; words of different counters are not of one instant.  The header's description of the machine
 * changes only while @sequence is odd.
 */
#ifndef VMP_METER_ABI_H
#define VMP_METER_ABI_H

#include <stdint.h>

#define VMP_METER_MAGIC		0x524554454d504d56ULL	/* "VMPMETER", little endian */
#define VMP_METER_ABI		4

#define VMP_METER_CPUS		64
#define VMP_METER_NODES		16
#define VMP_METER_GUESTS	64	/* VMP_GUEST_HOST, 1 to VMP_GUEST_MAX, VMP_GUEST_UNKNOWN */
#define VMP_METER_VMCBS		1024
#define VMP_METER_EXITS		16
#define VMP_METER_LINE_BYTES	64

/* One level of the modelled cache. */
struct vmp_meter_level {
	uint32_t bytes;
	uint32_t ways;
};

/* What the plugin was told of the machine it meters. */
struct vmp_meter_machine {
	uint32_t cpu_count;
	uint32_t node_count;
	struct vmp_meter_level private_cache;	/* of each CPU */
	struct vmp_meter_level shared_cache;	/* of all CPUs of a node */
	int32_t nids[VMP_METER_NODES];		/* of the memory-node index, ascending; -1 = unused */
	int32_t cpu_nids[VMP_METER_CPUS];	/* -1 = unused */
};

struct vmp_meter_header {
	uint64_t magic;
	uint32_t abi;
	uint32_t sequence;	/* odd while @machine is written */
	uint32_t cpus_offset;	/* of the rows, bytes from here */
	uint32_t cpu_bytes;	/* of one row */
	struct vmp_meter_machine machine;
	uint32_t enabled;
	uint32_t exit_count;
	uint64_t switches;	/* how often counting was switched on or off */
	uint64_t mark;		/* argument of the last VMP_MAGIC_MARK */
	uint64_t marks;		/* how many there were */
	uint64_t exits[VMP_METER_EXITS];	/* where the host's KVM goes on after a guest exit */
	uint32_t timed;		/* CPUs pay emulated time for their DRAM accesses */
	uint32_t pad;
};

/* What one vCPU said of itself; never removed, so that probing may stop at an empty one. */
struct vmp_meter_identity {
	uint64_t vmcb;		/* host-physical; 0 = empty */
	uint32_t guest;
	uint32_t runs;		/* VMRUNs since the vCPU last said so */
};

struct vmp_meter_dram {
	uint64_t reads;		/* lines fetched */
	uint64_t writes;	/* dirty lines written back */
};

struct vmp_meter_guest {
	uint64_t instructions;
	uint64_t loads;		/* before the caches */
	uint64_t stores;
	uint64_t stall_ns;	/* waited for DRAM, in emulated time; stands still unless @timed */
	struct vmp_meter_dram dram[VMP_METER_NODES];	/* by memory-node index */
	uint64_t work;		/* what the guest says it has done (VMP_MAGIC_WORK), in units of its own */
	uint64_t reserved[3];
	uint64_t fetched[VMP_METER_NODES];	/* instructions, by the memory-node index of their code */
	struct vmp_meter_dram kernel[VMP_METER_NODES];	/* of @dram, for addresses in the upper half: a kernel's */
};

/* Row of one CPU. */
struct vmp_meter_cpu {
	uint64_t vmcb;		/* of the nested vCPU that runs here now; 0 = the host itself */
	uint32_t guest;		/* whom accesses count for now */
	uint32_t pad;
	uint64_t unplaced;	/* DRAM accesses outside all nodes' memory: ROM, device memory */
	uint64_t unseen;	/* accesses whose address is not known: lines that they fetched are not counted */
	uint64_t reserved[4];
	struct vmp_meter_guest guests[VMP_METER_GUESTS];
};

struct vmp_meter_region {
	struct vmp_meter_header header;
	uint8_t pad[4096 - sizeof(struct vmp_meter_header)];
	struct vmp_meter_identity identities[VMP_METER_VMCBS];
	struct vmp_meter_cpu cpus[VMP_METER_CPUS];
};

/* The size of the ivshmem BAR and of its backing file; a PCI BAR is a power of two. */
#define VMP_METER_REGION_BYTES	(4UL << 20)

_Static_assert(sizeof(struct vmp_meter_cpu) % 64 == 0, "rows share no line of the real machine");
_Static_assert(sizeof(struct vmp_meter_region) <= VMP_METER_REGION_BYTES, "region fits its BAR");

#endif /* VMP_METER_ABI_H */
