/* SPDX-License-Identifier: MIT */
/*
 * How code inside the emulated host, or inside a guest of it, talks to the meter.
 *
 * A magic instruction is a no-op that compilers do not emit:
 *
 *	nopl disp32(%rax,%rax,1)	0f 1f 84 00 imm32
 *
 * with imm32 = VMP_MAGIC_TAG << 8 | opcode, and the argument in %rax.  It needs no privilege, touches no
 * memory (the operand of a nop is never loaded) and does nothing where no meter is listening, so it may
 * stay in any program.  The argument is a register so that it may be computed.
 *
 *	VMP_MAGIC_ON		start counting, with cold modelled caches; costs emulation speed
 *	VMP_MAGIC_OFF		stop counting; emulation runs at full speed again
 *	VMP_MAGIC_MARK		leave %rax in the region's header, for phases that a reader wants to see
 *	VMP_MAGIC_IDENTIFY	"the vCPU that executes this belongs to guest number %rax", 1 to
 *				VMP_GUEST_MAX.  To be said by **every** vCPU (each has its own VMCB), about
 *				once a second: the page of a VMCB may later serve another guest, so what
 *				is not repeated is forgotten.  Outside a nested guest it is ignored.
 *	VMP_MAGIC_TIME		count, and let every CPU pay emulated time for its DRAM accesses; needs a
 *				meter that was given a memory model, else it is VMP_MAGIC_ON
 *	VMP_MAGIC_WORK		"I have done %rax units more of my work": a program's progress, counted in the
 *				row of its CPU for the guest that runs there, whether counting is on or not
 */
#ifndef VMP_MAGIC_H
#define VMP_MAGIC_H

#define VMP_MAGIC_TAG		0x564d50	/* "VMP" */
#define VMP_MAGIC_IMM(opcode)	(VMP_MAGIC_TAG << 8 | (opcode))

#define VMP_MAGIC_ON		1
#define VMP_MAGIC_OFF		2
#define VMP_MAGIC_MARK		3
#define VMP_MAGIC_IDENTIFY	4
#define VMP_MAGIC_TIME		5
#define VMP_MAGIC_WORK		6

#define VMP_GUEST_HOST		0
#define VMP_GUEST_MAX		62
#define VMP_GUEST_UNKNOWN	63

#if defined(__x86_64__)
#define VMP_MAGIC(opcode, argument)						\
	__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00\n\t.long %c1"		\
			 : : "a" ((unsigned long)(argument)),			\
			     "i" (VMP_MAGIC_IMM(opcode)) : "memory")

static inline void vmp_magic_on(void)
{
	VMP_MAGIC(VMP_MAGIC_ON, 0);
}

static inline void vmp_magic_off(void)
{
	VMP_MAGIC(VMP_MAGIC_OFF, 0);
}

static inline void vmp_magic_time(void)
{
	VMP_MAGIC(VMP_MAGIC_TIME, 0);
}

static inline void vmp_magic_work(unsigned long units)
{
	VMP_MAGIC(VMP_MAGIC_WORK, units);
}

static inline void vmp_magic_mark(unsigned long mark)
{
	VMP_MAGIC(VMP_MAGIC_MARK, mark);
}

static inline void vmp_magic_identify(unsigned int guest)
{
	VMP_MAGIC(VMP_MAGIC_IDENTIFY, guest);
}
#endif

#endif /* VMP_MAGIC_H */
