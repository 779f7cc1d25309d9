/* How long is a request, and is it one?  Nobody but the agent asks; what it never sends ends the process. */
#include "apart_requests.h"

#include <string.h>

/* The buffer has them one after the other. */
_Static_assert(sizeof(((struct vmp_apart_request *)0)->hvas) == VMP_APART_MOST_PAGES * 16,
	       "hvas, nodes and states");

int64_t vmp_apart_body_bytes(const struct vmp_apart_head *head)
{
	uint32_t count = head->count;

	if (head->text && head->kind != VMP_APART_WRITE)
		return -1;
	switch (head->kind) {
	case VMP_APART_MOVE:
		/* Pid 0 would be the process itself. */
		return head->pid > 0 && count <= VMP_APART_MOST_PAGES ? count * INT64_C(16) : -1;
	case VMP_APART_ASK:
		return head->pid > 0 && count <= VMP_APART_MOST_PAGES ? count * INT64_C(12) : -1;
	case VMP_APART_WRITE:
		return count && count <= VMP_APART_MOST_TEXT && head->text <= VMP_APART_MOST_TEXT ?
			       (int64_t)count + head->text :
			       -1;
	case VMP_APART_COUNT:
		return head->pid >= 0 && count <= VMP_APART_MOST_EVENTS ?
			       count * (int64_t)sizeof(struct vmp_apart_event) :
			       -1;
	}
	return -1;
}

int vmp_apart_path_ends(const struct vmp_apart_request *request)
{
	return memchr(request->path, 0, request->head.count) == request->path + request->head.count - 1;
}
