#include "control.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000LL
#define REPORT_NS (1000 * NS_PER_MS)
#define LISTENER_NS (2000 * NS_PER_MS)

struct totals {
	uint64_t reads, writes, calls, verified_pages, late_ticks;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 * NS_PER_MS + now.tv_nsec;
}

/*
 * A port without a listener refuses (EAGAIN); the line is then dropped: the
 * next one carries the same totals.
 */
static void send_line(int out, const char *line, size_t length)
{
	while (length) {
		ssize_t sent = write(out, line, length);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return;
		line += sent;
		length -= (size_t)sent;
	}
}

/*
 * Whoever asks also listens, but the guest's kernel may hand over the question before it takes note of the
 * listener: an answer at that moment would be dropped.
 */
static void await_listener(int out)
{
	struct pollfd poll_out = { .fd = out, .events = POLLOUT };
	int64_t deadline_ns = now_ns() + LISTENER_NS;

	while (poll(&poll_out, 1, 0) >= 0 && !(poll_out.revents & POLLOUT) && now_ns() < deadline_ns)
		usleep(1000);
}

void vmp_control_error(int out, const char *message)
{
	char line[512];
	int length = snprintf(line, sizeof(line), "{\"event\":\"error\",\"message\":\"%s\"}\n", message);

	for (int i = 0; i < length - 2; i++)
		line[i] = line[i] == '\n' ? ' ' : line[i];
	send_line(out, line, (size_t)length);
}

static struct totals sum_up(struct vmp_team *team)
{
	struct totals totals = { 0 };

	for (unsigned int i = 0; i < team->nworkers; i++) {
		totals.reads += team->workers[i].reads;
		totals.writes += team->workers[i].writes;
		totals.calls += team->workers[i].calls;
		totals.verified_pages += team->workers[i].verified_pages;
		totals.late_ticks += team->workers[i].late_ticks;
	}
	return totals;
}

static void report(struct vmp_control *control, const char *event)
{
	struct vmp_arena *arena = control->team->arena;
	struct totals totals = sum_up(control->team);
	uint64_t bad = arena->bad_pages;
	char first_bad[32] = "null", line[672];
	int length;

	if (bad)
		snprintf(first_bad, sizeof(first_bad), "%" PRIu64, arena->first_bad_page);
	length = snprintf(line, sizeof(line),
			  "{\"event\":\"%s\",\"t\":%.3f,\"guest\":%u,\"phase\":%d,"
			  "\"arena_pages\":%" PRIu64 ",\"touches\":%" PRIu64 ",\"reads\":%" PRIu64
			  ",\"writes\":%" PRIu64 ",\"late_ticks\":%" PRIu64
			  ",\"verified_pages\":%" PRIu64 ",\"bad_pages\":%" PRIu64
			  ",\"first_bad\":%s,\"calls\":%" PRIu64 ",\"wrong_calls\":%" PRIu64
			  ",\"answers\":%" PRIu64 "}\n",
			  event, (double)(now_ns() - control->start_ns) / 1e9,
			  control->team->pattern->guest_id, control->team->phase, arena->npages,
			  totals.reads + totals.writes, totals.reads, totals.writes,
			  totals.late_ticks, totals.verified_pages, bad, first_bad,
			  totals.calls, control->team->library.wrong, control->answers);
	send_line(control->out, line, (size_t)length);
}

static void corrupt(struct vmp_control *control, const char *text)
{
	struct vmp_arena *arena = control->team->arena;
	uint64_t offset = strtoull(text, NULL, 10);

	if (offset < arena->npages << 12)
		((volatile uint8_t *)arena->lines)[offset] ^= 1;
	report(control, "corrupted");
}

static void set_phase(struct vmp_control *control, int phase)
{
	struct vmp_pattern *pattern = control->team->pattern;

	control->team->phase = phase;
	if ((size_t)phase < pattern->nphases)
		control->phase_end_ns = now_ns() + (int64_t)pattern->phase_ms[phase] * NS_PER_MS;
	report(control, "phase");
}

static void obey(struct vmp_control *control, const char *command)
{
	if (!strcmp(command, "status")) {
		report(control, "status");
	} else if (!strcmp(command, "go")) {
		control->team->going = 1;
		report(control, "going");
	} else if (!strcmp(command, "verify")) {
		vmp_team_verify(control->team);
		report(control, "verified");
	} else if (!strncmp(command, "phase ", 6)) {
		set_phase(control, atoi(command + 6));
	} else if (!strncmp(command, "speed ", 6) && atof(command + 6) > 0) {
		control->team->speed = atof(command + 6);
		report(control, "speed");
	} else if (!strncmp(command, "corrupt ", 8)) {
		corrupt(control, command + 8);
	} else if (!strcmp(command, "quit")) {
		report(control, "quit");
		control->quit = 1;
	} else {
		vmp_control_error(control->out, "unknown command");
	}
}

/* "@NUMBER COMMAND": the answer has the number, so that no other line is taken for it. */
static void obey_numbered(struct vmp_control *control, const char *text)
{
	char *command = (char *)text;

	if (*text == '@')
		control->answers = strtoull(text + 1, &command, 10);
	obey(control, command + strspn(command, " "));
	control->answers = 0;
}

static void obey_lines(struct vmp_control *control)
{
	char *newline;

	while ((newline = memchr(control->buffer, '\n', control->length))) {
		size_t used = (size_t)(newline - control->buffer) + 1;

		*newline = '\0';
		await_listener(control->out);
		obey_numbered(control, control->buffer);
		control->length -= used;
		memmove(control->buffer, newline + 1, control->length);
	}
	if (control->length == sizeof(control->buffer))
		control->length = 0;
}

/* Return whether something came; a plain process ends with its input. */
static int receive(struct vmp_control *control)
{
	ssize_t got = read(control->in, control->buffer + control->length,
			   sizeof(control->buffer) - control->length);

	if (got > 0) {
		control->length += (size_t)got;
		obey_lines(control);
	} else if (!got && getpid() != 1) {
		control->quit = 1;
	}
	return got > 0;
}

static void advance_phase(struct vmp_control *control)
{
	struct vmp_pattern *pattern = control->team->pattern;
	size_t next = (size_t)control->team->phase + 1;

	if (!pattern->nphases || now_ns() < control->phase_end_ns)
		return;
	if (next >= pattern->nphases && !pattern->repeat_phases)
		return;
	set_phase(control, (int)(next % pattern->nphases));
}

/* As process 1 we inherit every orphan; the declared child's end is told. */
static void reap(struct vmp_control *control)
{
	char line[96];
	int status, pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != control->child)
			continue;
		snprintf(line, sizeof(line), "{\"event\":\"child\",\"status\":%d}\n",
			 WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
		send_line(control->out, line, strlen(line));
	}
}

static void wait_for_input(struct vmp_control *control, int64_t until_ns)
{
	struct pollfd poll_in = { .fd = control->in, .events = POLLIN };
	int64_t left_ms = (until_ns - now_ns()) / NS_PER_MS + 1;

	if (left_ms <= 0)
		return;
	poll(&poll_in, 1, (int)left_ms);
	if (!poll_in.revents || (poll_in.revents & POLLIN && receive(control)))
		return;
	if (getpid() == 1)
		/* A port without a listener is readable and at its end: poll() does not wait. */
		usleep((useconds_t)(left_ms < 100 ? left_ms : 100) * 1000);
	else
		control->quit = 1;
}

static int64_t next_event_ns(const struct vmp_control *control, int64_t report_ns)
{
	int64_t phase_end_ns = control->phase_end_ns;

	return phase_end_ns > now_ns() && phase_end_ns < report_ns ? phase_end_ns : report_ns;
}

void vmp_control_loop(struct vmp_control *control)
{
	int64_t next_ns = now_ns();

	if (control->team->pattern->nphases)
		set_phase(control, 0);
	while (!control->quit) {
		if (now_ns() >= next_ns) {
			report(control, "status");
			next_ns = now_ns() + REPORT_NS;
		}
		wait_for_input(control, next_event_ns(control, next_ns));
		advance_phase(control);
		reap(control);
	}
}
