/*
 * libFuzzer harness of what apart_worker.c makes of a request (make fuzz): its length, its path, and the table
 * of its events, without a call for a process.
 *
 * Input: heads, each with the first bytes of its body.
 */
#include "apart_events.h"

#include <stdlib.h>
#include <string.h>

static struct vmp_apart_events events;
static struct vmp_apart_request request;

static void check(void)
{
	uint32_t first = 0;

	if (events.keys > VMP_APART_MOST_KEYS)
		abort();
	for (uint32_t i = 0; i < events.keys; i++) {
		if (events.key[i].first != first || vmp_apart_key_find(&events, events.key[i].key) != (int)i)
			abort();
		first += events.key[i].count;
	}
	if (first != events.count || first > VMP_APART_MOST_EVENTS)
		abort();
}

static void take(const struct vmp_apart_head *head)
{
	int place = vmp_apart_key_find(&events, head->key);

	if (head->kind == VMP_APART_WRITE)
		vmp_apart_path_ends(&request);
	if (head->kind == VMP_APART_COUNT && place < 0) {
		place = vmp_apart_key_add(&events, head->key, head->pid, head->count);
		for (uint32_t i = 0; place >= 0 && i < head->count; i++)
			events.fds[events.key[place].first + i] = -1;
	}
	if (head->kind == VMP_APART_DROP && place >= 0)
		vmp_apart_key_drop(&events, place);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	events.keys = events.count = 0;
	while (size >= sizeof(request.head)) {
		size_t room, taken;
		int64_t body;

		memcpy(&request.head, data, sizeof(request.head));
		body = vmp_apart_body_bytes(&request.head);
		room = sizeof(request) - sizeof(request.head);
		if (body > (int64_t)room)
			abort();
		if (body < 0)
			return 0;
		data += sizeof(request.head);
		size -= sizeof(request.head);
		taken = size < 16 ? size : 16;
		taken = (size_t)body < taken ? (size_t)body : taken;
		memcpy(request.path, data, taken);
		data += taken;
		size -= taken;
		take(&request.head);
		check();
	}
	return 0;
}
