/* How is the kernel called for another process?  For the C core, and for apart_worker.c, which has no Python. */
#include "calls.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The arrays of uint64 are handed to the kernel as arrays of pointers. */
_Static_assert(sizeof(void *) == sizeof(uint64_t), "vmplace needs a 64-bit host");

int64_t vmp_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t vmp_call_move_pages(int pid, size_t count, const uint64_t *hvas, const int32_t *nids, int32_t *status,
			    int flags)
{
	int64_t started = vmp_now_ns();

	/* The kernel takes a count of 0 to mean no work, but still looks the process up. */
	if (syscall(SYS_move_pages, pid, count, hvas, nids, status, flags) < 0)
		return -errno;
	return vmp_now_ns() - started;
}

int vmp_open_count(uint32_t type, uint64_t config, int tid)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = type,
		.config = config,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
	};
	long fd = syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : (int)fd;
}
