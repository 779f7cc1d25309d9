/*
 * Which events does apart_worker.c count?  By key, without room for more than it may have.
 */
#ifndef VMP_APART_EVENTS_H
#define VMP_APART_EVENTS_H

#include "apart_requests.h"

/* The events of one key: @pid has the threads, @first is the place of the first descriptor. */
struct vmp_apart_key {
	uint64_t key;
	int32_t pid;
	uint32_t count;
	uint32_t first;
};

struct vmp_apart_events {
	uint32_t keys, count;
	struct vmp_apart_key key[VMP_APART_MOST_KEYS];
	/* Below 0 is the -errno with which an event did not open. */
	int32_t fds[VMP_APART_MOST_EVENTS];
};

/* Return the place of a key, or of a new one with @count events that are still to be opened, or -EMFILE. */
int vmp_apart_key_find(struct vmp_apart_events *events, uint64_t key);
int vmp_apart_key_add(struct vmp_apart_events *events, uint64_t key, int32_t pid, uint32_t count);

/* Close the events of a key, and forget it. */
void vmp_apart_key_drop(struct vmp_apart_events *events, int place);

#endif
