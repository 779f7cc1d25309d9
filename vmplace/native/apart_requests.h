/*
 * What apart.py and counting.py ask of apart_worker.c, and the answers: a byte once it is ready, VMP_APART_READY,
 * and then for each request a vmp_apart_answer with its values.  vmplace/apart.py has the same formats.
 *
 *   MOVE   hvas (u64), nodes (i32), states (i32)   answer: states
 *   ASK    hvas (u64), states (i32)                answer: states
 *   WRITE  a path with its 0, the text             answer: nothing more
 *   COUNT  events, opened by the first such        answer: a vmp_apart_counted for each
 *          request and closed with the socket
 */
#ifndef VMP_APART_REQUESTS_H
#define VMP_APART_REQUESTS_H

#include "calls.h"

/* Another one for each change of what is below: an agent may run that is older than this program. */
#define VMP_APART_READY "2"

enum vmp_apart_kind { VMP_APART_MOVE = 1, VMP_APART_ASK, VMP_APART_WRITE, VMP_APART_COUNT };

#define VMP_APART_MOST_PAGES 4096
#define VMP_APART_MOST_EVENTS 128
#define VMP_APART_MOST_TEXT 4096

/* @pid is whom the process works on; @count is of pages, events, or bytes of the path; @text is in bytes. */
struct vmp_apart_head {
	uint32_t kind;
	int32_t pid;
	uint32_t count;
	uint32_t text;
};

struct vmp_apart_event {
	uint32_t type;
	int32_t tid;
	uint64_t config;
};

/* @error is an errno; @cpu_ns is what the process used since its last answer, @waited_ns what it waited for a CPU. */
struct vmp_apart_answer {
	int64_t error;
	int64_t took_ns;
	int64_t cpu_ns;
	int64_t waited_ns;
};

struct vmp_apart_counted {
	int64_t error;
	struct vmp_count count;
};

/* With room for what is asked, and for what is answered in its place. */
struct vmp_apart_request {
	struct vmp_apart_head head;
	union {
		uint64_t hvas[VMP_APART_MOST_PAGES * 2];
		struct vmp_apart_event events[VMP_APART_MOST_EVENTS];
		struct vmp_apart_counted counted[VMP_APART_MOST_EVENTS];
		char path[2 * VMP_APART_MOST_TEXT];
	};
};

/* Return how many bytes follow a head, or -1 if there is no such request. */
int64_t vmp_apart_body_bytes(const struct vmp_apart_head *head);

/* Tell whether a whole request's path is one. */
int vmp_apart_path_ends(const struct vmp_apart_request *request);

#endif
