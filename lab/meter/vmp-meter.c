/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Tell the meter something from a shell inside the emulated host or a guest of it. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "magic.h"

static const char usage[] =
	"usage: vmp-meter on | time | off | mark NUMBER | identify GUEST\n"
	"  on, off         switch counting on, with cold modelled caches, or off\n"
	"  time            as on; and every CPU pays emulated time for its DRAM accesses\n"
	"  mark NUMBER     leave NUMBER in the header of the meter's region\n"
	"  identify GUEST  in a guest: say for each vCPU that it is of guest 1 to 62; repeat each second\n"
	"Without a meter around the machine, nothing happens.\n";

static int parse_number(const char *text, unsigned long *ret)
{
	char *end;

	*ret = strtoul(text, &end, 0);
	return end == text || *end || *text == '-' ? -1 : 0;
}

/* Each vCPU must say it itself: its VMCB is all the meter sees of it. */
static int identify(unsigned long guest)
{
	cpu_set_t online, one;

	if (guest < 1 || guest > VMP_GUEST_MAX || sched_getaffinity(0, sizeof(online), &online))
		return -1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &online))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one))
			return -1;
		vmp_magic_identify((unsigned int)guest);
	}
	return 0;
}

static int run(int argc, char **argv)
{
	unsigned long number;

	if (argc == 2 && !strcmp(argv[1], "on"))
		vmp_magic_on();
	else if (argc == 2 && !strcmp(argv[1], "time"))
		vmp_magic_time();
	else if (argc == 2 && !strcmp(argv[1], "off"))
		vmp_magic_off();
	else if (argc == 3 && !strcmp(argv[1], "mark") && !parse_number(argv[2], &number))
		vmp_magic_mark(number);
	else if (argc == 3 && !strcmp(argv[1], "identify") && !parse_number(argv[2], &number))
		return identify(number);
	else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	if (!run(argc, argv))
		return 0;
	fputs(usage, stderr);
	return 2;
}
