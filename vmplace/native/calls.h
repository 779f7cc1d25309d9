/*
 * Calls for other processes, which any process can hold up (held.py), without Python.
 */
#ifndef VMP_CALLS_H
#define VMP_CALLS_H

#include <stddef.h>
#include <stdint.h>

int64_t vmp_now_ns(void);

/*
 * move_pages(2), called once, never retried.  @nids NULL asks only.  Returns how long the call took in ns, or
 * -errno.  Pages that it left behind are no error: @status has them.
 */
int64_t vmp_call_move_pages(int pid, size_t count, const uint64_t *hvas, const int32_t *nids, int32_t *status,
			    int flags);

/* Open an event that counts one thread from now on.  Returns the descriptor, or -errno. */
int vmp_open_count(uint32_t type, uint64_t config, int tid);

/* What read(2) of such an event gives (perf_event_open(2)). */
struct vmp_count {
	uint64_t value, enabled_ns, running_ns;
};

#endif
