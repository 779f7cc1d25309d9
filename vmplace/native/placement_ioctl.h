/* What the calls to the placement fd share. */
#ifndef VMP_PLACEMENT_IOCTL_H
#define VMP_PLACEMENT_IOCTL_H

#include <errno.h>
#include <kvm_placement.h>
#include <stdlib.h>
#include <sys/ioctl.h>

static inline void vmp_free(void *pointer)
{
	free(*(void **)pointer);
}

#define _cleanup_free_ __attribute__((cleanup(vmp_free)))

/* Returns 0 or -errno. */
static inline int vmp_ioctl(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

#endif
