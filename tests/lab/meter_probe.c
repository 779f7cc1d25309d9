/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Make DRAM traffic whose amount is known beforehand, metered from its first to its last access:
 *
 *	meter_probe stream CPU NID MIB read|write	one access to each line of memory on NID, from CPU
 *	meter_probe nested CPU NID MIB GUEST		the same reads, by a KVM guest that says it is GUEST;
 *							0 = it says nothing
 *	meter_probe timed CPU NID MIB GUEST		the same in emulated time; prints the ns that it took
 *	meter_probe serve CPU NID MIB GUEST		a guest that says so once and then reads until it is
 *							killed; the meter is left alone
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "magic.h"

#define LINE_BYTES 64
#define MPOL_BIND 2
/* Guest-physical: the code of the guest, and where its stream begins. */
#define CODE_ADDRESS 0x1000
#define STREAM_ADDRESS 0x200000

static int check(int value, const char *what)
{
	if (value < 0)
		err(1, "%s", what);
	return value;
}

/* Make the caller run on @cpu only. */
static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
}

/* Return @bytes of memory that is present on @nid; the probe's exit frees it. */
static char *allocate(size_t bytes, int nid)
{
	unsigned long mask = 1UL << nid;
	char *ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (ret == MAP_FAILED)
		err(1, "mmap");
	check((int)syscall(SYS_mbind, ret, bytes, MPOL_BIND, &mask, 64, 0), "mbind");
	memset(ret, 1, bytes);
	return ret;
}

static void __attribute__((noinline)) stream(volatile char *memory, size_t bytes, int writes)
{
	for (size_t i = 0; i < bytes; i += LINE_BYTES) {
		if (writes)
			memory[i] = 2;
		else
			(void)memory[i];
	}
}

/* Counting begins and ends with the next block of instructions, which a system call makes sure of. */
static void switch_meter(int on)
{
	if (on)
		vmp_magic_on();
	else
		vmp_magic_off();
	sched_yield();
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void put(char **code, const void *bytes, size_t count)
{
	memcpy(*code, bytes, count);
	*code += count;
}

static void put_imm(char **code, const char *bytes, size_t count, unsigned int imm)
{
	put(code, bytes, count);
	put(code, &imm, sizeof(imm));
}

/*
 * 32-bit code without paging: identify, then read a word of each line, then halt.
 * Return where the reading begins, guest-physical.
 */
static unsigned int write_guest_code(char *code, unsigned int end, unsigned int guest)
{
	const char *begin = code;
	unsigned int ret;

	if (guest) {
		put_imm(&code, "\xb8", 1, guest);					/* mov $guest,%eax */
		put_imm(&code, "\x0f\x1f\x84\x00", 4, VMP_MAGIC_IMM(VMP_MAGIC_IDENTIFY));
	}
	ret = CODE_ADDRESS + (unsigned int)(code - begin);
	put_imm(&code, "\xbe", 1, STREAM_ADDRESS);	/* mov $start,%esi */
	put(&code, "\x8b\x06", 2);			/* 1: mov (%esi),%eax */
	put(&code, "\x83\xc6\x40", 3);			/* add $64,%esi */
	put_imm(&code, "\x81\xfe", 2, end);		/* cmp $end,%esi */
	put(&code, "\x72\xf3", 2);			/* jb 1b */
	put(&code, "\xf4", 1);				/* hlt */
	return ret;
}

static void enter_flat_mode(int vcpu)
{
	struct kvm_sregs sregs;

	check(ioctl(vcpu, KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	sregs.cr0 |= 1;
	sregs.cs.base = sregs.ds.base = 0;
	sregs.cs.limit = sregs.ds.limit = 0xffffffff;
	sregs.cs.g = sregs.ds.g = sregs.cs.db = sregs.ds.db = 1;
	sregs.cs.selector = 8;
	sregs.ds.selector = 16;
	sregs.ds.type = 3;
	sregs.cs.type = 11;
	check(ioctl(vcpu, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
}

static int create_guest(char *memory, size_t bytes, struct kvm_run **ret_run)
{
	struct kvm_userspace_memory_region slot = { .memory_size = bytes, .userspace_addr = (unsigned long)memory };
	int kvm = check(open("/dev/kvm", O_RDWR), "/dev/kvm");
	int vm = check(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	int size = check(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
	int vcpu;

	check(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot), "KVM_SET_USER_MEMORY_REGION");
	vcpu = check(ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
	*ret_run = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (*ret_run == MAP_FAILED)
		err(1, "mmap of the vCPU");
	enter_flat_mode(vcpu);
	return vcpu;
}

static void run_guest(int vcpu, struct kvm_run *run, unsigned int address)
{
	struct kvm_regs regs = { .rip = address, .rflags = 2 };

	check(ioctl(vcpu, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	/* Processes with a guest are stopped and continued around a snapshot, which interrupts the call. */
	while (ioctl(vcpu, KVM_RUN, 0)) {
		if (errno != EINTR)
			err(1, "KVM_RUN");
	}
	if (run->exit_reason != KVM_EXIT_HLT)
		errx(1, "the guest ended with reason %u", run->exit_reason);
}

/* Make a guest ready to read all of @bytes on @nid; return where its reading begins. */
static unsigned int start_nested(int nid, size_t bytes, unsigned int guest, int *ret_vcpu, struct kvm_run **ret_run)
{
	char *memory = allocate(STREAM_ADDRESS + bytes, nid);
	unsigned int reading = write_guest_code(memory + CODE_ADDRESS, (unsigned int)(STREAM_ADDRESS + bytes), guest);

	*ret_vcpu = create_guest(memory, STREAM_ADDRESS + bytes, ret_run);
	/* The first run makes KVM map everything, which is traffic of the host. */
	run_guest(*ret_vcpu, *ret_run, CODE_ADDRESS);
	return reading;
}

static void run_nested(int nid, size_t bytes, unsigned int guest)
{
	struct kvm_run *run;
	int vcpu;

	start_nested(nid, bytes, guest, &vcpu, &run);
	switch_meter(1);
	run_guest(vcpu, run, CODE_ADDRESS);
	switch_meter(0);
}

static void serve_nested(int nid, size_t bytes, unsigned int guest)
{
	struct kvm_run *run;
	int vcpu;
	unsigned int reading = start_nested(nid, bytes, guest, &vcpu, &run);

	for (;;)
		run_guest(vcpu, run, reading);
}

static void time_nested(int nid, size_t bytes, unsigned int guest)
{
	struct kvm_run *run;
	long long start_ns;
	int vcpu;

	start_nested(nid, bytes, guest, &vcpu, &run);
	vmp_magic_time();
	sched_yield();
	start_ns = now_ns();
	run_guest(vcpu, run, CODE_ADDRESS);
	printf("%lld\n", now_ns() - start_ns);
	switch_meter(0);
}

/* The same code runs before and after, so that it counts if the meter leaves translated code as it was. */
static void run_stream(int nid, size_t bytes, int writes)
{
	char *memory = allocate(bytes, nid);

	stream(memory, bytes, writes);
	switch_meter(1);
	stream(memory, bytes, writes);
	switch_meter(0);
	stream(memory, bytes, writes);
}

int main(int argc, char **argv)
{
	size_t bytes;
	int nid;

	if (argc != 6)
		errx(2, "usage: meter_probe stream CPU NID MIB read|write | nested|timed|serve CPU NID MIB GUEST");
	pin(atoi(argv[2]));
	nid = atoi(argv[3]);
	bytes = strtoul(argv[4], NULL, 10) << 20;
	if (!strcmp(argv[1], "nested"))
		run_nested(nid, bytes, (unsigned int)atoi(argv[5]));
	else if (!strcmp(argv[1], "timed"))
		time_nested(nid, bytes, (unsigned int)atoi(argv[5]));
	else if (!strcmp(argv[1], "serve"))
		serve_nested(nid, bytes, (unsigned int)atoi(argv[5]));
	else
		run_stream(nid, bytes, !strcmp(argv[5], "write"));
	return 0;
}
