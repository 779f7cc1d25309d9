/*
 * Loaded with LD_PRELOAD: let the n-th call that opens, writes, syncs, cuts or renames a file fail, or end
 * the process with SIGKILL there.
 *
 * fault_arm() sets what happens and counts from there; fault_disarm() lets all calls through again and
 * returns how many there were.  One thread at a time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

enum fault_mode {
	FAULT_ONCE,		/* the call fails */
	FAULT_FOR_GOOD,		/* and so do all later ones */
	FAULT_SHORT,		/* a write puts half of it down, the next call fails */
	FAULT_KILL_BEFORE,
	FAULT_KILL_HALFWAY,	/* a write puts half of it down first */
	FAULT_KILL_AFTER,
};

static struct {
	long at, calls;
	int error;
	enum fault_mode mode;
} fault;

void fault_arm(long at, int error, int mode)
{
	fault.calls = 0;
	fault.error = error;
	fault.mode = mode;
	fault.at = at;
}

long fault_disarm(void)
{
	fault.at = 0;
	return fault.calls;
}

static void end_here(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

/* Returns 1 if the call is to fail, with errno set. */
static int fails(void)
{
	if (!fault.at)
		return 0;
	fault.calls++;
	if (fault.mode == FAULT_KILL_BEFORE && fault.calls == fault.at)
		end_here();
	if (fault.mode > FAULT_SHORT || fault.calls < fault.at)
		return 0;
	if (fault.mode == FAULT_ONCE && fault.calls > fault.at)
		return 0;
	if (fault.mode == FAULT_SHORT && fault.calls != fault.at + 1)
		return 0;
	errno = fault.error;
	return 1;
}

static void done(void)
{
	if (fault.at && fault.mode >= FAULT_KILL_HALFWAY && fault.calls == fault.at)
		end_here();
}

static size_t as_much(size_t count)
{
	int half = fault.mode == FAULT_SHORT || fault.mode == FAULT_KILL_HALFWAY;

	return fault.at && half && fault.calls == fault.at && count > 1 ? count / 2 : count;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name)								\
int name(const char *path, int flags, ...)					\
{										\
	va_list rest;								\
	mode_t mode;								\
	int fd;									\
										\
	va_start(rest, flags);							\
	mode = va_arg(rest, mode_t);						\
	va_end(rest);								\
	if (fails())								\
		return -1;							\
	fd = REAL(name)(path, flags, mode);					\
	done();									\
	return fd;								\
}

#define OPENS_AT(name)								\
int name(int dir, const char *path, int flags, ...)				\
{										\
	va_list rest;								\
	mode_t mode;								\
	int fd;									\
										\
	va_start(rest, flags);							\
	mode = va_arg(rest, mode_t);						\
	va_end(rest);								\
	if (fails())								\
		return -1;							\
	fd = REAL(name)(dir, path, flags, mode);				\
	done();									\
	return fd;								\
}

#define CALLS(name, params, args)						\
int name params									\
{										\
	int ret;								\
										\
	if (fails())								\
		return -1;							\
	ret = REAL(name) args;							\
	done();									\
	return ret;								\
}

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
CALLS(fsync, (int fd), (fd))
CALLS(fdatasync, (int fd), (fd))
CALLS(ftruncate, (int fd, off_t length), (fd, length))
CALLS(ftruncate64, (int fd, off64_t length), (fd, length))
CALLS(rename, (const char *from, const char *to), (from, to))
CALLS(renameat, (int from_dir, const char *from, int to_dir, const char *to), (from_dir, from, to_dir, to))
CALLS(unlinkat, (int dir, const char *path, int flags), (dir, path, flags))

ssize_t write(int fd, const void *data, size_t count)
{
	ssize_t ret;

	if (fails())
		return -1;
	ret = REAL(write)(fd, data, as_much(count));
	done();
	return ret;
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t offset)
{
	ssize_t ret;

	if (fails())
		return -1;
	ret = REAL(pwrite)(fd, data, as_much(count), offset);
	done();
	return ret;
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset)
{
	ssize_t ret;

	if (fails())
		return -1;
	ret = REAL(pwrite64)(fd, data, as_much(count), offset);
	done();
	return ret;
}
