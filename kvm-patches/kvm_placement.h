/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
#ifndef _UAPI_LINUX_KVM_PLACEMENT_H
#define _UAPI_LINUX_KVM_PLACEMENT_H

/*
 * The placement fd: which NUMA node touches which guest page, and what to do
 * about it.  See Documentation/virt/kvm/placement.rst.
 */

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Capability and ioctl numbers stay clear of the ranges that KVM allocates
 * from, a program that knows them never mistakes a later capability for this.
 */
#define KVM_CAP_PLACEMENT		0x706c

/*
 * On a VM fd; also allowed for a process that is not the VM's owner.  The
 * argument is a mask of KVM_PLACEMENT_OBSERVE and the like.
 */
#define KVM_CREATE_PLACEMENT_FD		_IO(0xAE, 0xf8)

/* The fd is to look at the VM only, and never becomes its placement's owner. */
#define KVM_PLACEMENT_OBSERVE		(1U << 0)

/* On a placement fd. */
#define KVM_PLACEMENT_STATS_FD		_IO(0xAE, 0xf7)
#define KVM_PLACEMENT_INFO		_IOWR(0xAE, 0xf9, struct kvm_placement_info)
#define KVM_PLACEMENT_ROOTS		_IOWR(0xAE, 0xfa, struct kvm_placement_roots)
#define KVM_PLACEMENT_HARVEST		_IOWR(0xAE, 0xfb, struct kvm_placement_harvest)
#define KVM_PLACEMENT_REPLICATE		_IOWR(0xAE, 0xfc, struct kvm_placement_replicate)
#define KVM_PLACEMENT_COLLAPSE		_IOWR(0xAE, 0xfd, struct kvm_placement_replicate)
#define KVM_PLACEMENT_MOVE		_IOWR(0xAE, 0xfe, struct kvm_placement_move)
#define KVM_PLACEMENT_HINTS		_IOW(0xAE, 0xff, struct kvm_placement_hints)

/* An id of a node or task that is not known. */
#define KVM_PLACEMENT_UNKNOWN		(-1)

/* Node roots exist for nodes 0 to KVM_PLACEMENT_MAX_NODES - 1. */
#define KVM_PLACEMENT_MAX_NODES		31

#define KVM_PLACEMENT_FEATURE_ROOTS	(1ULL << 0)
#define KVM_PLACEMENT_FEATURE_HARVEST	(1ULL << 1)
#define KVM_PLACEMENT_FEATURE_REPLICATE	(1ULL << 2)
#define KVM_PLACEMENT_FEATURE_MOVE	(1ULL << 3)
#define KVM_PLACEMENT_FEATURE_HINTS	(1ULL << 4)
#define KVM_PLACEMENT_FEATURE_STATS	(1ULL << 5)
/* REPLICATE takes huge pages that a range covers. */
#define KVM_PLACEMENT_FEATURE_REPLICATE_HUGE	(1ULL << 6)

/* The VM's own properties. */
#define KVM_PLACEMENT_VM_ASSIGNED_DEVICE	(1U << 0)
#define KVM_PLACEMENT_VM_PRIVATE_MEMORY		(1U << 1)

/**
 * struct kvm_placement_info - KVM_PLACEMENT_INFO
 * @slots: address of an array of struct kvm_placement_slot
 * @vcpus: address of an array of struct kvm_placement_vcpu
 * @nr_slots: in: entries that fit into @slots; out: memslots of the VM
 * @nr_vcpus: in: entries that fit into @vcpus; out: vCPUs of the VM
 * @features: out: KVM_PLACEMENT_FEATURE_*
 * @nodes: out: bitmap of the nodes that can have a root: those with CPUs
 * @root_nodes: out: bitmap of the nodes that have node roots now; none while
 *              half of the memory or more is being logged
 * @pinned_pages: out: pages of the VM's process that are pinned for DMA
 * @vm_flags: out: KVM_PLACEMENT_VM_*
 * @flags: must be 0
 *
 * A count that is larger on return than on entry means that the array holds
 * only the first entries.
 */
struct kvm_placement_info {
	__u64 slots;
	__u64 vcpus;
	__u32 nr_slots;
	__u32 nr_vcpus;
	__u64 features;
	__u64 nodes;
	__u64 root_nodes;
	__u64 pinned_pages;
	__u32 vm_flags;
	__u32 flags;
};

/* What backs a memslot; several bits if it spans several mappings. */
#define KVM_PLACEMENT_BACKING_ANON		(1U << 0) /* private, anonymous */
#define KVM_PLACEMENT_BACKING_FILE		(1U << 1) /* private, of a file */
#define KVM_PLACEMENT_BACKING_SHARED		(1U << 2) /* memfd, tmpfs, file */
#define KVM_PLACEMENT_BACKING_HUGETLB		(1U << 3)
#define KVM_PLACEMENT_BACKING_PFNMAP		(1U << 4) /* a device's memory */
#define KVM_PLACEMENT_BACKING_GUEST_MEMFD	(1U << 5)
#define KVM_PLACEMENT_BACKING_LOCKED		(1U << 6) /* mlock(2) */
#define KVM_PLACEMENT_BACKING_HOLE		(1U << 7) /* partly unmapped */

/**
 * struct kvm_placement_slot - one memslot
 * @base_gfn: first guest frame number
 * @npages: 4K pages
 * @hva: address of the first page in the VM's process
 * @slot: address space id in bits 31:16, slot id in bits 15:0, as in
 *        struct kvm_userspace_memory_region
 * @flags: KVM_MEM_*
 * @backing: KVM_PLACEMENT_BACKING_*, 0 if the VM's process is gone
 * @pad: 0
 */
struct kvm_placement_slot {
	__u64 base_gfn;
	__u64 npages;
	__u64 hva;
	__u32 slot;
	__u32 flags;
	__u32 backing;
	__u32 pad;
};

/**
 * struct kvm_placement_vcpu - one vCPU
 * @vcpu_id: the id given to KVM_CREATE_VCPU
 * @tid: thread that ran the vCPU last, in the caller's pid namespace, or
 *       KVM_PLACEMENT_UNKNOWN
 * @nid: node the vCPU ran on last, or KVM_PLACEMENT_UNKNOWN
 * @pad: 0
 */
struct kvm_placement_vcpu {
	__u32 vcpu_id;
	__s32 tid;
	__s32 nid;
	__u32 pad;
};

/* Fill new roots with copies of existing mappings. */
#define KVM_PLACEMENT_ROOTS_POPULATE	(1U << 0)

/**
 * struct kvm_placement_roots - KVM_PLACEMENT_ROOTS
 * @nodes: bitmap of the nodes whose vCPUs get a root of their own; vCPUs on
 *         other nodes share one root; 0 is the state of a new VM
 * @flags: KVM_PLACEMENT_ROOTS_*
 * @pad: must be 0
 * @copied: out: mappings copied into new roots
 */
struct kvm_placement_roots {
	__u64 nodes;
	__u32 flags;
	__u32 pad;
	__u64 copied;
};

/* Clear the reported bits. */
#define KVM_PLACEMENT_HARVEST_CLEAR	(1U << 0)
/* With the former: flush the TLBs if bits were cleared.  They hide no access then. */
#define KVM_PLACEMENT_HARVEST_FLUSH	(1U << 1)
/* Descend also where the accessed bit of a page table is clear. */
#define KVM_PLACEMENT_HARVEST_FULL	(1U << 2)

/**
 * struct kvm_placement_harvest - KVM_PLACEMENT_HARVEST
 * @gfn: first guest frame number
 * @npages: number of guest frames
 * @records: address of an array of struct kvm_placement_record
 * @nr_records: in: entries that fit into @records, KVM_PLACEMENT_MIN_RECORDS or
 *              more; out: entries written
 * @flags: KVM_PLACEMENT_HARVEST_*
 * @cursor: in: 0, or the value returned by the call to continue; out: 0 if the
 *          range is done, else pass it to the next call
 * @as_id: address space, 0 or 1 (SMM)
 * @pad: must be 0
 */
struct kvm_placement_harvest {
	__u64 gfn;
	__u64 npages;
	__u64 records;
	__u32 nr_records;
	__u32 flags;
	__u64 cursor;
	__u32 as_id;
	__u32 pad;
};

/* The least number of records to offer: what one page table may need. */
#define KVM_PLACEMENT_MIN_RECORDS	8

/*
 * @dirty says nothing: dirty logging is on for the memslot or, on a CPU that logs dirty
 * pages itself (PML), for 1/64 of the VM's memory or more.
 */
#define KVM_PLACEMENT_RECORD_DIRTY_UNKNOWN	(1U << 0)

/**
 * struct kvm_placement_record - what one node did to 64 pages or a huge page
 * @gfn: first guest frame number: a multiple of 64, or of the huge page's size
 * @nid: node that touched the pages; KVM_PLACEMENT_UNKNOWN for the root that
 *       nodes share
 * @level: 1: the masks have a bit per 4K page; 2 and 3: a mapping of 2M or 1G,
 *         only bit 0 of the masks is used
 * @flags: KVM_PLACEMENT_RECORD_*
 * @accessed: mask of pages that were read, written or executed
 * @dirty: mask of pages that were written
 */
struct kvm_placement_record {
	__u64 gfn;
	__s32 nid;
	__u16 level;
	__u16 flags;
	__u64 accessed;
	__u64 dirty;
};

/* Bounds of struct kvm_placement_hints. */
#define KVM_PLACEMENT_HINTS_MAX_SPANS	256
#define KVM_PLACEMENT_HINTS_MAX_BATCH	16384
#define KVM_PLACEMENT_HINTS_MIN_PERIOD	10
#define KVM_PLACEMENT_HINTS_MAX_PERIOD	1000
#define KVM_PLACEMENT_HINTS_MIN_ENTRIES	128
#define KVM_PLACEMENT_HINTS_MAX_ENTRIES	131072

/**
 * struct kvm_placement_span - guest frames to sample
 * @gfn: first guest frame number
 * @npages: number of guest frames
 */
struct kvm_placement_span {
	__u64 gfn;
	__u64 npages;
};

/**
 * struct kvm_placement_hints - KVM_PLACEMENT_HINTS
 * @spans: address of an array of struct kvm_placement_span
 * @nr_spans: entries of @spans
 * @budget: mappings to arm per second, each of which yields one record at most;
 *          0 switches hints off and frees the ring
 * @period_ms: milliseconds for which a mapping stays armed; @budget times this
 *             is at most KVM_PLACEMENT_HINTS_MAX_BATCH seconds
 * @nr_entries: entries of the ring, a power of 2
 * @flags: must be 0
 * @pad: must be 0
 */
struct kvm_placement_hints {
	__u64 spans;
	__u32 nr_spans;
	__u32 budget;
	__u32 period_ms;
	__u32 nr_entries;
	__u32 flags;
	__u32 pad;
};

/* Offset of the entries in the mapping of the ring, its header is at 0. */
#define KVM_PLACEMENT_HINT_RING_ENTRIES	4096

/**
 * struct kvm_placement_hint_ring - the first page of the ring
 * @head: entries that were read so far, written by the reader
 * @tail: entries that were written so far, written by KVM
 * @lost: hint faults that found the ring full
 * @armed: mappings that were armed so far
 * @nr_entries: entries of the ring: number n is at n modulo this
 * @entry_size: size of an entry in bytes
 */
struct kvm_placement_hint_ring {
	__u64 head;
	__u64 tail;
	__u64 lost;
	__u64 armed;
	__u32 nr_entries;
	__u32 entry_size;
};

#define KVM_PLACEMENT_HINT_WRITE	(1U << 0)
#define KVM_PLACEMENT_HINT_EXEC		(1U << 1)
/* The guest's page tables were accessed, not what the guest addressed. */
#define KVM_PLACEMENT_HINT_WALK		(1U << 2)

/**
 * struct kvm_placement_hint - one access of the guest
 * @gpa: guest physical address, exact even if a huge page maps it
 * @time: CLOCK_MONOTONIC, in nanoseconds
 * @vcpu_id: the id given to KVM_CREATE_VCPU
 * @nid: node that the vCPU was on
 * @level: size of the mapping: 1, 2 and 3 stand for 4K, 2M and 1G
 * @flags: KVM_PLACEMENT_HINT_*
 * @pad: 0
 */
struct kvm_placement_hint {
	__u64 gpa;
	__u64 time;
	__u32 vcpu_id;
	__s32 nid;
	__u16 level;
	__u16 flags;
	__u32 pad;
};

/* Why a page was not replicated or moved. */
#define KVM_PLACEMENT_OK		0
#define KVM_PLACEMENT_NO_MEMSLOT	1
#define KVM_PLACEMENT_NOT_PRESENT	2 /* nothing mapped, or the zero page */
#define KVM_PLACEMENT_NOT_ANON		3 /* others may map it: shared or file */
#define KVM_PLACEMENT_LOCKED		4 /* mlock(2) */
#define KVM_PLACEMENT_LARGE		5 /* a part of a huge page or large folio */
#define KVM_PLACEMENT_BUSY		6 /* pinned or in use, maybe not for long */
#define KVM_PLACEMENT_DIRTY_LOG		7 /* dirty logging is on */
#define KVM_PLACEMENT_NO_MEMORY		8 /* a node or the VM's cgroup is full */
#define KVM_PLACEMENT_BACKOFF		9 /* collapsed lately, see the docs */
#define KVM_PLACEMENT_POISONED		10
#define KVM_PLACEMENT_SHARED		11 /* other processes map the page, too */
#define KVM_PLACEMENT_WRITTEN		12 /* written while it was copied */
#define KVM_PLACEMENT_NODE_REFUSED	13 /* no memory, not in cpuset.mems, no root */

/**
 * struct kvm_placement_range - guest frames, and what became of them
 * @gfn: first guest frame number
 * @npages: number of guest frames
 * @done: out: frames that are now as asked for
 * @status: out: why the first of the others is not, KVM_PLACEMENT_OK if none
 * @pad: must be 0
 */
struct kvm_placement_range {
	__u64 gfn;
	__u32 npages;
	__u32 done;
	__u32 status;
	__u32 pad;
};

/**
 * struct kvm_placement_replicate - KVM_PLACEMENT_REPLICATE and _COLLAPSE
 * @nodes: bitmap of the nodes to have a copy; 0 for _COLLAPSE
 * @ranges: address of an array of struct kvm_placement_range
 * @nr_ranges: in: entries of @ranges; out: entries that were handled, fewer if
 *             a signal is pending, or before an error
 * @flags: must be 0
 */
struct kvm_placement_replicate {
	__u64 nodes;
	__u64 ranges;
	__u32 nr_ranges;
	__u32 flags;
};

/* Split huge pages, and move only the one page of them. */
#define KVM_PLACEMENT_MOVE_SPLIT	(1U << 0)
/* Move also huge pages that are written all the time: writers wait. */
#define KVM_PLACEMENT_MOVE_INSIST	(1U << 1)
/* Empty the LRU batches of all CPUs first, pages in them are busy; waits for all CPUs. */
#define KVM_PLACEMENT_MOVE_DRAIN	(1U << 2)

/**
 * struct kvm_placement_move_entry - a page to move, and what became of it
 * @gfn: guest frame number; of a huge page, any that it has
 * @nid: node to move the page to
 * @status: out: KVM_PLACEMENT_OK if the page is on the node now, else why not
 * @npages: out: guest frames that have moved, 0 if the page was there already
 * @pad: must be 0
 */
struct kvm_placement_move_entry {
	__u64 gfn;
	__s32 nid;
	__u32 status;
	__u32 npages;
	__u32 pad;
};

/**
 * struct kvm_placement_move - KVM_PLACEMENT_MOVE
 * @entries: address of an array of struct kvm_placement_move_entry
 * @nr_entries: in: entries of @entries; out: entries that were handled, fewer
 *              if a signal is pending
 * @flags: KVM_PLACEMENT_MOVE_*
 */
struct kvm_placement_move {
	__u64 entries;
	__u32 nr_entries;
	__u32 flags;
};

#endif /* _UAPI_LINUX_KVM_PLACEMENT_H */
