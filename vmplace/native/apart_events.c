/* Keys and descriptors of the events that apart_worker.c counts, without gaps in the order they came. */
#include "apart_events.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int vmp_apart_key_find(struct vmp_apart_events *events, uint64_t key)
{
	for (uint32_t i = 0; i < events->keys; i++)
		if (events->key[i].key == key)
			return (int)i;
	return -ENOENT;
}

int vmp_apart_key_add(struct vmp_apart_events *events, uint64_t key, int32_t pid, uint32_t count)
{
	if (events->keys == VMP_APART_MOST_KEYS || count > VMP_APART_MOST_EVENTS - events->count)
		return -EMFILE;
	events->key[events->keys] = (struct vmp_apart_key){ key, pid, count, events->count };
	events->count += count;
	return (int)events->keys++;
}

void vmp_apart_key_drop(struct vmp_apart_events *events, int place)
{
	struct vmp_apart_key gone = events->key[place];
	uint32_t after = gone.first + gone.count;

	for (uint32_t i = gone.first; i < after; i++)
		if (events->fds[i] >= 0)
			close(events->fds[i]);
	memmove(events->fds + gone.first, events->fds + after, (events->count - after) * sizeof(*events->fds));
	memmove(events->key + place, events->key + place + 1, (events->keys - place - 1) * sizeof(*events->key));
	events->count -= gone.count;
	events->keys--;
	for (uint32_t i = place; i < events->keys; i++)
		events->key[i].first -= gone.count;
}
