/*
 * A guest that touches what it is ordered to: a multiboot kernel (-kernel), without an operating system.
 *
 * Over COM1 it is sent two bytes, FIRST and END in units of 4 MiB; it writes to each page of that range of its
 * memory and answers with "k".  It lies itself in the megabyte from 1 MiB.
 */
#include <stdint.h>

#define MULTIBOOT_MAGIC 0x1BADB002
#define COM1 0x3f8
#define LINE_STATUS (COM1 + 5)
#define DATA_READY 1

/* As the Multiboot specification 0.6.96, section 3.1, has it: magic, flags and a sum of zero. */
__attribute__((section(".multiboot"), used)) static const uint32_t multiboot[3] = {
	MULTIBOOT_MAGIC, 0, -MULTIBOOT_MAGIC,
};

static uint8_t in(uint16_t port)
{
	uint8_t value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static uint8_t receive(void)
{
	while (!(in(LINE_STATUS) & DATA_READY))
		__asm__ volatile("pause");
	return in(COM1);
}

static void serve(void)
{
	for (;;) {
		uint32_t first = receive(), end = receive();

		for (uint32_t at = first << 22; at < end << 22; at += 4096)
			*(volatile uint32_t *)at = at;
		__asm__ volatile("outb %0, %1" : : "a"((uint8_t)'k'), "Nd"((uint16_t)COM1));
	}
}

static uint8_t stack[4096] __attribute__((aligned(16), used));

__attribute__((naked, used)) void _start(void)
{
	__asm__ volatile("movl $stack + 4096, %%esp; jmp *%0" : : "r"(serve));
}
