/*
 * Calls that not even a kill ends, made in a process that can be left behind (apart.py).
 *
 * Its stdin is a socket, its stdout /dev/null.  It ends with its socket, and at a request that cannot be.  Its
 * name in ps(1) is that of its work: "vmpmove PID", "vmpmove damon" for WRITE.  One that counts events does that
 * for one process, whose name it has until all are closed.  One that is left behind takes memory until its call
 * ends, so it has no heap, and keeps little of its buffer between requests.
 */
#include "apart_requests.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NAME "vmpmove "
#define NAME_BYTES 16
#define PAGE_BYTES 4096
/* So much of the buffer stays between requests, and is enough for so many pages or events. */
#define KEPT_BYTES (20 << 10)
#define KEPT_COUNT 512

_Static_assert(KEPT_BYTES % PAGE_BYTES == 0, "whole pages");
_Static_assert(sizeof(struct vmp_apart_head) + KEPT_COUNT * sizeof(struct vmp_apart_counted) <= KEPT_BYTES,
	       "room for these");

static struct vmp_apart_request request __attribute__((aligned(PAGE_BYTES)));
/* Of the events that it counts; below 0 is the -errno with which one did not open. */
static int32_t counts[VMP_APART_MOST_EVENTS];
static uint32_t opened;
static bool is_counting;
static int schedstat = -1;

static void call_itself(int32_t pid, bool is_damon)
{
	static int64_t last = -1;
	int64_t now = is_damon ? -2 : pid;
	char name[NAME_BYTES] = NAME "damon";

	if (now == last)
		return;
	last = now;
	if (!is_damon)
		snprintf(name, sizeof(name), NAME "%d", pid);
	prctl(PR_SET_NAME, name);
}

/* Return how long this process could have run and had no CPU; 0 where the kernel does not say. */
static int64_t waited_for_cpu_ns(void)
{
	char text[128];
	ssize_t got = pread(schedstat, text, sizeof(text) - 1, 0);
	const char *second;

	if (got <= 0)
		return 0;
	text[got] = 0;
	second = strchr(text, ' ');
	return second ? strtoll(second, NULL, 10) : 0;
}

/* Return the CPU time since the last time. */
static int64_t used_cpu_ns(void)
{
	static int64_t before;
	struct timespec now;
	int64_t used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	used = now.tv_sec * INT64_C(1000000000) + now.tv_nsec - before;
	before += used;
	return used;
}

/* Return whether a whole request came, and no more than that. */
static bool read_request(void)
{
	size_t got = 0, wanted = sizeof(request.head);

	while (got < wanted) {
		ssize_t part = read(STDIN_FILENO, (char *)&request + got, sizeof(request) - got);

		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0)
			return false;
		if (got < sizeof(request.head) && got + part >= sizeof(request.head)) {
			int64_t body = vmp_apart_body_bytes(&request.head);

			if (body < 0)
				return false;
			wanted += body;
		}
		got += part;
	}
	return got == wanted;
}

static bool send_all(struct iovec *parts, int count)
{
	while (count) {
		struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };
		ssize_t sent = sendmsg(STDIN_FILENO, &message, MSG_NOSIGNAL);

		if (sent < 0 && errno != EINTR)
			return false;
		sent = sent < 0 ? 0 : sent;
		for (; count && (size_t)sent >= parts->iov_len; parts++, count--)
			sent -= parts->iov_len;
		if (count) {
			parts->iov_base = (char *)parts->iov_base + sent;
			parts->iov_len -= sent;
		}
	}
	return true;
}

static int64_t write_text(void)
{
	const char *text = request.path + request.head.count;
	int fd = open(request.path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return -errno;
	done = write(fd, text, request.head.text);
	done = done < 0 ? -errno : done < request.head.text ? -EIO : 0;
	close(fd);
	return done;
}

static struct vmp_apart_counted counted(int fd)
{
	struct vmp_apart_counted ret = { 0 };
	ssize_t got = fd < 0 ? 0 : read(fd, &ret.count, sizeof(ret.count));

	if (got != sizeof(ret.count))
		ret = (struct vmp_apart_counted){ .error = fd < 0 ? -fd : got < 0 ? errno : EIO };
	return ret;
}

/* Put what each event counts in the place of the events. */
static void count_all(void)
{
	uint32_t count = request.head.count;

	for (; opened < count && !is_counting; opened++) {
		const struct vmp_apart_event *event = &request.events[opened];

		counts[opened] = vmp_open_count(event->type, event->config, event->tid);
	}
	is_counting = true;
	/* There are as many as at first; there is no more to be read of others. */
	for (uint32_t i = 0; i < count; i++)
		request.counted[i] = counted(i < opened ? counts[i] : -EMFILE);
}

/* Do what is asked.  Return how long that took, or -errno, and what is to be sent of the buffer. */
static int64_t make_call(struct iovec *values)
{
	const struct vmp_apart_head *head = &request.head;
	int32_t *arrays = (int32_t *)(request.hvas + head->count);
	bool moves = head->kind == VMP_APART_MOVE;

	switch (head->kind) {
	case VMP_APART_MOVE:
	case VMP_APART_ASK:
		/* The caller's states are sent along: the kernel does not fill in all of them. */
		values->iov_base = moves ? arrays + head->count : arrays;
		values->iov_len = head->count * sizeof(*arrays);
		return vmp_call_move_pages(head->pid, head->count, request.hvas, moves ? arrays : NULL,
					   values->iov_base, moves ? MPOL_MF_MOVE : 0);
	case VMP_APART_WRITE:
		return write_text();
	default:
		count_all();
		values->iov_base = request.counted;
		values->iov_len = head->count * sizeof(*request.counted);
		return 0;
	}
}

static bool answer_request(void)
{
	int64_t waited_ns = waited_for_cpu_ns(), began_ns = vmp_now_ns(), result;
	struct vmp_apart_answer answer = { 0 };
	struct iovec parts[] = { { &answer, sizeof(answer) }, { NULL, 0 } };

	call_itself(request.head.pid, request.head.kind == VMP_APART_WRITE);
	result = make_call(&parts[1]);
	answer.error = result < 0 ? -result : 0;
	answer.took_ns = result > 0 ? result : vmp_now_ns() - began_ns;
	answer.waited_ns = waited_for_cpu_ns() - waited_ns;
	answer.cpu_ns = used_cpu_ns();
	return send_all(parts, 2);
}

/* Give back what a large request took. */
static void free_buffer(void)
{
	/* Only whole pages of it: other variables may share the last one. */
	size_t bytes = (sizeof(request) - KEPT_BYTES) / PAGE_BYTES * PAGE_BYTES;

	if (request.head.count > KEPT_COUNT)
		madvise((char *)&request + KEPT_BYTES, bytes, MADV_DONTNEED);
}

static bool start(void)
{
	static const int ignored[] = { SIGINT, SIGTERM, SIGHUP };
	struct iovec ready = { VMP_APART_READY, 1 };

	/* These reach the agent, too, which ends this process after its present call. */
	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		signal(ignored[i], SIG_IGN);
	prctl(PR_SET_DUMPABLE, 0);
	/* A process that is left behind must not keep the agent's stderr open: its reader would wait. */
	if (dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
		return false;
	schedstat = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
	return send_all(&ready, 1);
}

int main(void)
{
	if (!start())
		return EXIT_FAILURE;
	while (read_request()) {
		if (request.head.kind == VMP_APART_WRITE && !vmp_apart_path_ends(&request))
			break;
		if (!answer_request())
			break;
		free_buffer();
	}
	/* Before the socket: the agent waits for its end. */
	while (opened)
		if (counts[--opened] >= 0)
			close(counts[opened]);
	return EXIT_SUCCESS;
}
