/*
 * vmp-small-pages ARGUMENT... : QEMU without transparent huge pages.
 *
 * QEMU advises them for all anonymous RAM and has no option against it
 * (qemu_ram_alloc(), system/physmem.c); the flag that is set here outlives
 * execve(2) (PR_SET_THP_DISABLE, prctl(2)).
 */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#define QEMU "/usr/bin/qemu-system-x86_64"

int main(int argc, char **argv)
{
	if (!argc)
		return 2;
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) {
		perror("vmp-small-pages: PR_SET_THP_DISABLE");
		return 1;
	}
	argv[0] = QEMU;
	execv(QEMU, argv);
	perror("vmp-small-pages: " QEMU);
	return 1;
}
