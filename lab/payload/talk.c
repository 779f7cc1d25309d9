/*
 * vmp-talk SECONDS COMMAND SOCKET... : say COMMAND to payloads and print their answers.
 *
 * All are asked first, so that they work at the same time; then each answer is
 * printed as "SOCKET<tab>JSON".  Where COMMAND begins with "@NUMBER ", the answer is
 * the line with that number: what a payload says by itself, or says late to another
 * question, is passed over.  Without one, status lines are, unless COMMAND is "status".
 * Exit code 1 when one did not answer in time.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct peer {
	const char *path;
	int fd;
	char buffer[4096];
	size_t length;
};

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (strlen(path) < sizeof(address.sun_path)) {
		strcpy(address.sun_path, path);
		if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
			return fd;
	} else {
		errno = ENAMETOOLONG;
	}
	close(fd);
	return -1;
}

static int ask(struct peer *peer, const char *command)
{
	peer->fd = connect_to(peer->path);
	if (peer->fd >= 0 && dprintf(peer->fd, "%s\n", command) > 0)
		return 0;
	fprintf(stderr, "vmp-talk: %s: %s\n", peer->path, strerror(errno));
	return -1;
}

/* Return a whole line without its end, or NULL at the deadline or the end of the stream. */
static char *receive_line(struct peer *peer, double deadline_s)
{
	static char line[sizeof(peer->buffer)];

	for (;;) {
		char *newline = memchr(peer->buffer, '\n', peer->length);
		struct pollfd poll_in = { .fd = peer->fd, .events = POLLIN };
		/* One that is silent must not cost the others' answers: those are there already. */
		double left_s = deadline_s > now_s() ? deadline_s - now_s() : 0;
		ssize_t got;

		if (newline) {
			size_t used = (size_t)(newline - peer->buffer) + 1;

			memcpy(line, peer->buffer, used - 1);
			line[used - 1] = '\0';
			peer->length -= used;
			memmove(peer->buffer, newline + 1, peer->length);
			return line;
		}
		if (poll(&poll_in, 1, (int)(left_s * 1000) + 1) <= 0)
			return NULL;
		got = read(peer->fd, peer->buffer + peer->length,
			   sizeof(peer->buffer) - peer->length);
		if (got <= 0)
			return NULL;
		peer->length += (size_t)got;
	}
}

static int is_answer(const char *line, const char *command)
{
	char number[48];

	if (*command != '@')
		return !strcmp(command, "status") || !strstr(line, "\"event\":\"status\"");
	snprintf(number, sizeof(number), "\"answers\":%llu}", strtoull(command + 1, NULL, 10));
	return strstr(line, number) || strstr(line, "\"event\":\"error\"");
}

static int print_answer(struct peer *peer, const char *command, double deadline_s)
{
	char *line;

	while ((line = receive_line(peer, deadline_s))) {
		if (!is_answer(line, command))
			continue;
		printf("%s\t%s\n", peer->path, line);
		return 0;
	}
	fprintf(stderr, "vmp-talk: %s: no answer\n", peer->path);
	return -1;
}

int main(int argc, char **argv)
{
	struct peer *peers = calloc((size_t)argc, sizeof(*peers));
	double deadline_s;
	int failed = 0;

	if (argc < 4 || !peers) {
		fprintf(stderr, "usage: vmp-talk SECONDS COMMAND SOCKET...\n");
		return 2;
	}
	deadline_s = now_s() + atof(argv[1]);
	for (int i = 3; i < argc; i++) {
		peers[i].path = argv[i];
		failed |= ask(&peers[i], argv[2]);
	}
	for (int i = 3; i < argc; i++)
		if (peers[i].fd >= 0)
			failed |= print_answer(&peers[i], argv[2], deadline_s);
	free(peers);
	return failed ? 1 : 0;
}
