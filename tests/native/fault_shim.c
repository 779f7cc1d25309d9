/*
 * Loaded with LD_PRELOAD: let the n-th call that opens, writes, syncs, cuts or renames a file fail, or end
 * the process with SIGKILL there.
 *
 * fault_arm() sets what happens and counts from there; fault_disarm() lets all calls through again and
 * returns how many there were.  One thread at a time.
 *
 * fault_shadow() names a folder that keeps what a power cut would leave: at each sync the file's bytes, as
 * f<inode>, or the directory's names, as d<inode>.  Syncs of one kind can be left out of that, as if the code
 * under test did not make them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

enum sync_kind { SYNC_NONE, SYNC_FDATASYNC, SYNC_FILE, SYNC_DIRECTORY };

static struct {
	char folder[256];
	int left_out;
} shadow;

void fault_shadow(const char *folder, int left_out)
{
	snprintf(shadow.folder, sizeof(shadow.folder), "%s", folder);
	shadow.left_out = left_out;
}

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

static void shadow_path(char *path, size_t size, const struct stat *st)
{
	snprintf(path, size, "%s/%c%lu", shadow.folder, S_ISDIR(st->st_mode) ? 'd' : 'f',
		 (unsigned long)st->st_ino);
}

static void keep_names(int fd, int out)
{
	char path[64];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		if (entry->d_type == DT_REG)
			dprintf(out, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
	if (dir)
		closedir(dir);
}

static void keep_bytes(int fd, int out)
{
	static char part[1 << 16];
	off_t offset = 0;
	ssize_t count;

	while ((count = pread(fd, part, sizeof(part), offset)) > 0) {
		if (REAL(write)(out, part, count) != count)
			abort();
		offset += count;
	}
}

/* What has just been synced outlives a power cut from now on. */
static void keep(int fd, int is_fdatasync)
{
	int out, kind, error = errno;
	char path[512];
	struct stat st;

	if (!shadow.folder[0] || fstat(fd, &st))
		return;
	kind = is_fdatasync ? SYNC_FDATASYNC : S_ISDIR(st.st_mode) ? SYNC_DIRECTORY : SYNC_FILE;
	if (kind == shadow.left_out)
		return;
	shadow_path(path, sizeof(path), &st);
	out = REAL(openat)(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (out < 0)
		abort();
	if (S_ISDIR(st.st_mode))
		keep_names(fd, out);
	else
		keep_bytes(fd, out);
	close(out);
	errno = error;
}

/* A new file is no old one of the same inode number. */
static void begin_anew(int fd, int flags)
{
	int error = errno;
	char path[512];
	struct stat st;

	if (!shadow.folder[0] || fd < 0 || !(flags & O_CREAT) || fstat(fd, &st) || st.st_size)
		return;
	shadow_path(path, sizeof(path), &st);
	REAL(unlinkat)(AT_FDCWD, path, 0);
	errno = error;
}

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
	begin_anew(fd, flags);							\
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
	begin_anew(fd, flags);							\
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

#define SYNCS(name, is_fdatasync)						\
int name(int fd)								\
{										\
	int ret;								\
										\
	if (fails())								\
		return -1;							\
	ret = REAL(name)(fd);							\
	if (!ret)								\
		keep(fd, is_fdatasync);						\
	done();									\
	return ret;								\
}

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
SYNCS(fsync, 0)
SYNCS(fdatasync, 1)
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
