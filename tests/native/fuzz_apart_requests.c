/*
 * libFuzzer harness of what apart_worker.c makes of a request (make fuzz): its length and its path, without a
 * call for a process.
 *
 * Input: heads, each with the first bytes of its body.
 */
#include "apart_requests.h"

#include <stdlib.h>
#include <string.h>

static struct vmp_apart_request request;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
		if (request.head.kind == VMP_APART_WRITE)
			vmp_apart_path_ends(&request);
	}
	return 0;
}
