/*
 * A program with a declared memory access pattern that proves its memory intact.
 *
 *   1. As process 1 of a small Linux guest it mounts what it needs, reads its
 *      pattern from the kernel command line (words "vmp.KEY=VALUE") and talks over
 *      the virtio-serial port "vmplace.payload".
 *   2. As a plain process it takes the words as arguments (or @FILE) and talks over
 *      standard input and output.
 *
 * The words are explained in pattern.c, the checks in arena.h, the talk in
 * control.h.  Every vCPU names its guest to the meter each tick (meter/magic.h).
 */
#include "control.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define PORT_NAME "vmplace.payload"
#define TEXT_SIZE 8192
/* What a guest keeps for its kernel and for us when the arena is "max". */
#define RESERVE_MIB 32

static struct vmp_pattern pattern;
static struct vmp_arena arena;
static struct vmp_team team;

static void read_text(const char *path, char *ret, size_t size)
{
	FILE *file = fopen(path, "r");
	size_t length = 0;

	if (file) {
		length = fread(ret, 1, size - 1, file);
		fclose(file);
	}
	ret[length] = '\0';
}

static void mount_filesystems(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 01777);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
}

/* Return the port's descriptor, or -1 where no port has our name. */
static int open_port(void)
{
	DIR *ports = opendir("/sys/class/virtio-ports");
	struct dirent *entry;
	char path[300], name[64];
	int port = -1;

	while (ports && port < 0 && (entry = readdir(ports))) {
		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%.200s/name", entry->d_name);
		read_text(path, name, sizeof(name));
		if (strncmp(name, PORT_NAME, strlen(PORT_NAME)))
			continue;
		snprintf(path, sizeof(path), "/dev/%.200s", entry->d_name);
		port = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	}
	if (ports)
		closedir(ports);
	return port;
}

static void join_arguments(int argc, char **argv, char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (int i = 1; i < argc && used < size; i++) {
		if (argv[i][0] == '@')
			read_text(argv[i] + 1, ret + used, size - used);
		else
			snprintf(ret + used, size - used, "%s ", argv[i]);
		used += strlen(ret + used);
	}
}

static uint64_t free_mib(void)
{
	struct sysinfo info;
	uint64_t mib;

	if (sysinfo(&info))
		return 0;
	mib = (uint64_t)info.freeram * info.mem_unit >> 20;
	/* Whole huge pages, so that the arena's end is like the rest. */
	return mib > RESERVE_MIB ? (mib - RESERVE_MIB) & ~1ULL : 0;
}

static int start_child(char **argv)
{
	int child = fork();

	if (child)
		return child;
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("HOME", "/tmp", 1);
	/* Standard output may be the report's channel: the child gets standard error. */
	dup2(STDERR_FILENO, STDOUT_FILENO);
	execvp(argv[0], argv);
	_exit(127);
}

static int prepare(const char *text, int prefixed, char *error, size_t error_size)
{
	int err = vmp_pattern_parse(text, prefixed, &pattern, error, error_size);

	if (err)
		return err;
	if (!pattern.nvcpus)
		pattern.nvcpus = (unsigned int)get_nprocs();
	if (!pattern.arena_mib)
		pattern.arena_mib = free_mib();
	err = vmp_pattern_check(&pattern, pattern.arena_mib << 14, error, error_size);
	if (err)
		return err;
	err = vmp_arena_init(&arena, pattern.arena_mib, pattern.seed, pattern.huge_pages);
	if (!err)
		err = vmp_team_start(&team, &pattern, &arena);
	if (err)
		snprintf(error, error_size, "cannot start: %s", strerror(-err));
	return err;
}

static int run(struct vmp_control *control, const char *text, int prefixed)
{
	struct timespec now;
	char error[256];

	clock_gettime(CLOCK_MONOTONIC, &now);
	control->start_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
	control->team = &team;
	if (prepare(text, prefixed, error, sizeof(error))) {
		vmp_control_error(control->out, error);
		if (control->out != STDERR_FILENO)
			vmp_control_error(STDERR_FILENO, error);
		return 2;
	}
	if (pattern.nrun)
		control->child = start_child(pattern.run);
	vmp_control_loop(control);
	return arena.bad_pages ? 1 : 0;
}

static int run_as_init(void)
{
	struct vmp_control control = { .child = -1 };
	char text[TEXT_SIZE];

	mount_filesystems();
	read_text("/proc/cmdline", text, sizeof(text));
	control.in = open_port();
	if (control.in < 0)
		control.in = open("/dev/console", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	control.out = control.in;
	if (run(&control, text, 1) == 2)
		sleep(5);
	sync();
	return reboot(RB_POWER_OFF);
}

int main(int argc, char **argv)
{
	struct vmp_control control = { .in = STDIN_FILENO, .out = STDOUT_FILENO, .child = -1 };
	char text[TEXT_SIZE];
	int ret;

	signal(SIGPIPE, SIG_IGN);
	if (getpid() == 1)
		return run_as_init();
	join_arguments(argc, argv, text, sizeof(text));
	ret = run(&control, text, 0);
	if (control.child > 0)
		kill(control.child, SIGTERM);
	return ret;
}
