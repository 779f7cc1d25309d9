/*
 * A process that keeps the lock of its mappings, as any user may: one thread reads /proc/self/mem at a page of a
 * FUSE file whose server never answers, another waits in mmap(2) behind it, and so does everybody who comes later.
 *
 * Prints its pid, the address of 64 MiB of its memory, and its server's pid; "h" on stdin: hold the lock; "l": let go;
 * end of file: end.  It dies with its parent, and after five minutes, for ps(1) waits for it, too.
 *
 * "p": hold the lock of its main thread's perf events, with an ioctl that reads its argument from that file.
 *
 * With the argument "exec" it lives for a minute, and its server answers no flush either: "e" on stdin has it exec with
 * a FUSE file that is closed on exec.  The kernel waits for the flush with exec_update_lock held, and mmap_lock free.
 *
 * With the argument "aio" it has I/O to that file, which never ends.  Whoever reads its memory while it is killed is the
 * last user of its memory map, and waits for the I/O in a way that no kill ends.  The server lives on for two minutes.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fuse.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIFE_S 300
#define EXEC_LIFE_S 60
#define AIO_LIFE_S 120
#define RAM_BYTES (64UL << 20)
#define FILE_PAGES 4096

static char *pages;
static bool will_exec, does_aio;
/* Of the server and of who asks it: a page was asked for. */
static volatile bool *is_asked;
static volatile pid_t waiter_tid;

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		err(1, "%s", path);
	close(fd);
}

/* Root of a user namespace of its own, who may mount FUSE. */
static void become_root_of_nothing(void)
{
	unsigned int uid = getuid(), gid = getgid();
	char map[64];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		err(77, "unshare");
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1", uid);
	write_file("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "0 %u 1", gid);
	write_file("/proc/self/gid_map", map);
}

static void reply(int fd, const struct fuse_in_header *in, int error, const void *data, size_t size)
{
	char buffer[8192];
	struct fuse_out_header out = { .len = sizeof(out) + size, .error = error, .unique = in->unique };

	memcpy(buffer, &out, sizeof(out));
	if (size)
		memcpy(buffer + sizeof(out), data, size);
	if (write(fd, buffer, out.len) < 0 && errno != ENOENT)
		err(1, "reply");
}

static struct fuse_attr attributes(bool is_root)
{
	return (struct fuse_attr){ .ino = is_root ? 1 : 2, .size = is_root ? 0 : FILE_PAGES * 4096UL, .nlink = 1,
				   .mode = is_root ? S_IFDIR | 0755 : S_IFREG | 0666, .blksize = 4096 };
}

/* Answers all but reads. */
static void serve_one(int fd, const struct fuse_in_header *in)
{
	const struct fuse_init_in *init = (const void *)(in + 1);
	struct fuse_init_out begun = { .major = 7, .max_write = 4096, .max_background = 1 };
	struct fuse_entry_out entry = { .nodeid = 2, .attr_valid = 1000, .entry_valid = 1000,
					.attr = attributes(false) };
	struct fuse_attr_out attr = { .attr_valid = 1000, .attr = attributes(in->nodeid == 1) };
	struct fuse_open_out opened = { .fh = 1 };

	switch (in->opcode) {
	case FUSE_INIT:
		begun.minor = init->minor < 31 ? init->minor : 31;
		/* Else io_submit(2) itself waits. */
		begun.flags = FUSE_ASYNC_DIO;
		reply(fd, in, 0, &begun, sizeof(begun));
		break;
	case FUSE_LOOKUP:
		reply(fd, in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		reply(fd, in, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		reply(fd, in, 0, &opened, sizeof(opened));
		break;
	case FUSE_FLUSH:
		if (!will_exec)
			reply(fd, in, 0, NULL, 0);
		break;
	case FUSE_READ:
		*is_asked = true;
		break;
	case FUSE_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		reply(fd, in, -ENOSYS, NULL, 0);
	}
}

static void serve(int fd)
{
	static char buffer[1 << 17];
	ssize_t size;

	if (!does_aio)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(does_aio ? AIO_LIFE_S : will_exec ? EXEC_LIFE_S : LIFE_S);
	while ((size = read(fd, buffer, sizeof(buffer))) >= 0 || errno != ENODEV)
		if (size > 0)
			serve_one(fd, (const void *)buffer);
	_exit(0);
}

static pid_t mount_and_serve(const char *where)
{
	char options[64];
	int fd = open("/dev/fuse", O_RDWR);
	pid_t server;

	if (fd < 0)
		err(77, "/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	if (mount("holder", where, "fuse", MS_NOSUID | MS_NODEV, options))
		err(77, "mount");
	server = fork();
	if (!server)
		serve(fd);
	close(fd);
	return server;
}

/* A VM, whose memory it is, makes it a guest where /dev/kvm may be opened. */
static void become_a_guest(void *ram)
{
	struct kvm_userspace_memory_region slot = { .memory_size = RAM_BYTES, .userspace_addr = (uintptr_t)ram };
	int kvm = open("/dev/kvm", O_RDWR), vm;

	if (kvm < 0)
		return;
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0 || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) || ioctl(vm, KVM_CREATE_VCPU, 0) < 0)
		err(1, "KVM");
}

static sem_t may_read, may_wait;

static void *read_page(void *at)
{
	int fd = open("/proc/self/mem", O_RDONLY);
	char byte;

	sem_wait(&may_read);
	if (pread(fd, &byte, 1, (off_t)at) < 0)
		close(fd);
	return NULL;
}

static void *wait_behind(void *unused)
{
	waiter_tid = gettid();
	sem_wait(&may_wait);
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return unused;
}

/* The kernel takes the lock of the thread's events, then copies the argument, which is on a page that never comes. */
static void *set_period(void *event)
{
	ioctl(*(int *)event, PERF_EVENT_IOC_PERIOD, pages + 4096);
	return NULL;
}

static void hold_events(void)
{
	struct perf_event_attr attr = { .size = sizeof(attr), .type = PERF_TYPE_SOFTWARE,
					.config = PERF_COUNT_SW_DUMMY, .exclude_kernel = 1 };
	static int event;
	pthread_t setter;

	event = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (event < 0)
		err(1, "perf_event_open");
	pthread_create(&setter, NULL, set_period, &event);
	/* Whose argument is asked for has the lock. */
	while (!*is_asked)
		usleep(1000);
}

/* Does the other thread wait in mmap, not for the semaphore?  Without a call that takes the lock. */
static bool is_waited_behind(void)
{
	char path[64], stat[512], *state;
	ssize_t size;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", waiter_tid);
	fd = open(path, O_RDONLY);
	size = read(fd, stat, sizeof(stat) - 1);
	close(fd);
	if (size < 0)
		return false;
	stat[size] = 0;
	state = strrchr(stat, ')');
	return state && state[1] && state[2] == 'D';
}

static void hold(void)
{
	sem_post(&may_read);
	/* Who asks for a page has the lock; and what comes next has its stack then. */
	while (!*is_asked || !waiter_tid || is_waited_behind())
		usleep(1000);
	sem_post(&may_wait);
	while (!is_waited_behind())
		usleep(1000);
}

static void begin_io(const char *file)
{
	static char at[4096] __attribute__((aligned(4096)));
	struct iocb request = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)at, .aio_nbytes = sizeof(at) };
	struct iocb *requests[] = { &request };
	aio_context_t context = 0;

	request.aio_fildes = open(file, O_RDONLY | O_DIRECT);
	if ((int)request.aio_fildes < 0 || syscall(SYS_io_setup, 1, &context) ||
	    syscall(SYS_io_submit, context, 1, requests) != 1)
		err(1, "io_submit");
}

static void exec_with(int fd, const char *directory)
{
	umount2(directory, MNT_DETACH);
	rmdir(directory);
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) || write(STDOUT_FILENO, "e", 1) < 0)
		err(1, "before exec");
	execl("/bin/sleep", "sleep", "1", NULL);
	err(1, "exec");
}

int main(int argc, char **argv)
{
	char directory[] = "/tmp/holderXXXXXX", file[64], command;
	pthread_t reader, waiter;
	pid_t server;
	char *ram;
	int fd;

	will_exec = argc > 1 && !strcmp(argv[1], "exec");
	does_aio = argc > 1 && !strcmp(argv[1], "aio");
	alarm(does_aio ? AIO_LIFE_S : will_exec ? EXEC_LIFE_S : LIFE_S);
	is_asked = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (is_asked == MAP_FAILED)
		err(1, "mmap");
	become_root_of_nothing();
	/* Only now: the kernel forgets it when capabilities change. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!mkdtemp(directory))
		err(1, "mkdtemp");
	server = mount_and_serve(directory);
	snprintf(file, sizeof(file), "%s/x", directory);
	fd = open(file, O_RDWR);
	pages = mmap(NULL, FILE_PAGES * 4096UL, PROT_READ, MAP_SHARED, fd, 0);
	ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || pages == MAP_FAILED || ram == MAP_FAILED)
		err(1, "mmap");
	memset(ram, 1, RAM_BYTES);
	become_a_guest(ram);
	if (does_aio)
		begin_io(file);
	/* Before the lock is held: to make a thread takes it. */
	pthread_create(&reader, NULL, read_page, pages);
	pthread_setname_np(reader, "CPU 0/KVM");
	pthread_create(&waiter, NULL, wait_behind, NULL);
	printf("%d %lu %d\n", getpid(), (unsigned long)ram, server);
	fflush(stdout);
	while (read(STDIN_FILENO, &command, 1) == 1) {
		if (command == 'h') {
			hold();
		} else if (command == 'p') {
			hold_events();
		} else if (command == 'e') {
			exec_with(fd, directory);
		} else {
			/* Without a server, all that waits for it fails. */
			kill(server, SIGKILL);
		}
		if (write(STDOUT_FILENO, &command, 1) < 0)
			break;
	}
	umount2(directory, MNT_DETACH);
	rmdir(directory);
	return 0;
}
