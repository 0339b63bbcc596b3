/*
 * A power cut for a server that runs on an ordinary file system.
 *
 * As a preloaded library (LD_PRELOAD) it keeps, for every file under the data directory, what a disk would still hold if the power
 * went now: before a block is changed for the first time since its file was last synced, the block is copied aside; fsync
 * and fdatasync forget the copies. As a program (built with -DCUT) it takes the data directory back: to the copies, all of them or a
 * random part, some blocks torn between the two states at 512 bytes.
 *
 *   AREA/<device>-<inode>.map    head (durable size, path), then a byte for each block: 1 = copied aside
 *   AREA/<device>-<inode>.old    the copies, each at its place
 *
 * Names are durable at once, as in a journal that is written in order; contents and sizes are not. sync_file_range makes nothing
 * durable. Whoever changes a file, or syncs it, holds the lock on its map meanwhile. Files that are written through stdio are not
 * followed: the server recomputes what it writes so.
 *
 *   POWERLOSS_AREA  where to keep the copies; without it nothing is done
 *   POWERLOSS_DATA  the data directory (the server's working directory, too)
 *   POWERLOSS_DEAF  paths that begin so are not synced, whatever is called: a disk that lies
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096
#define SECTOR 512
#define MAGIC 0x504f5752

struct head {
	uint32_t magic;
	uint32_t deaf;
	int64_t durable_size;
	char path[240];
};

static int raw_open(const char *path, int flags, int mode)
{
	return (int) syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}

static void die(const char *what, const char *path)
{
	dprintf(2, "powerloss: %s %s: %s\n", what, path, strerror(errno));
	abort();
}

/* Reads up to a block; what the file does not have is zero. */
static void read_block(int fd, int64_t at, char *block)
{
	memset(block, 0, BLOCK);
	if (syscall(SYS_pread64, fd, block, (size_t) BLOCK, at) < 0)
		die("read", "block");
}

static void write_all(int fd, const char *bytes, size_t length, int64_t at)
{
	if (syscall(SYS_pwrite64, fd, bytes, length, at) != (long) length)
		die("write", "copy");
}

static void name_of(char *out, size_t room, const char *area, const struct stat *st, const char *kind)
{
	snprintf(out, room, "%s/%lx-%lx.%s", area, (unsigned long) st->st_dev, (unsigned long) st->st_ino, kind);
}

#ifndef CUT

#define FILES 65536

static const char *area, *data, *deaf;

/* What a descriptor stands for. */
static struct { char known, deaf; dev_t dev; ino_t ino; char path[240]; } files[FILES];

/* The server writes its process title over the environment. */
static const char *copy_of(const char *name)
{
	const char *value = getenv(name);
	return value ? strdup(value) : NULL;
}

__attribute__((constructor)) static void begin(void)
{
	area = copy_of("POWERLOSS_AREA");
	data = copy_of("POWERLOSS_DATA");
	deaf = copy_of("POWERLOSS_DEAF");
	if (!data)
		area = NULL;
}

#define REAL(result, name, ...) \
	static result (*real)(__VA_ARGS__); \
	if (!real) \
		real = (result (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, #name)

/* The path within the data directory; NULL: elsewhere. */
static const char *inside(const char *path)
{
	if (!area)
		return NULL;
	if (path[0] != '/') {
		/* The server works in its data directory; its helpers do not. */
		char cwd[1024];
		if (!getcwd(cwd, sizeof cwd) || strcmp(cwd, data) != 0)
			return NULL;
		return strncmp(path, "./", 2) == 0 ? path + 2 : path;
	}
	size_t length = strlen(data);
	if (strncmp(path, data, length) != 0 || path[length] != '/')
		return NULL;
	return path + length + 1;
}

static void lock(int map, int kind)
{
	struct flock range = { .l_type = (short) kind, .l_whence = SEEK_SET };
	while (fcntl(map, F_SETLKW, &range) != 0)
		if (errno != EINTR)
			die("lock", "map");
}

static void forget(const struct stat *st)
{
	char name[512];
	name_of(name, sizeof name, area, st, "map");
	syscall(SYS_unlink, name);
	name_of(name, sizeof name, area, st, "old");
	syscall(SYS_unlink, name);
}

static void opened(int fd, const char *path, int flags)
{
	if (fd < 0 || fd >= FILES)
		return;
	int saved = errno;
	files[fd].known = 0;
	const char *within = inside(path);
	struct stat st;
	if (within && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		files[fd].known = 1;
		files[fd].dev = st.st_dev;
		files[fd].ino = st.st_ino;
		files[fd].deaf = deaf && strncmp(within, deaf, strlen(deaf)) == 0;
		snprintf(files[fd].path, sizeof files[fd].path, "%s", within);
		/* A new file may have an old one's number. */
		if ((flags & O_CREAT) && st.st_size == 0)
			forget(&st);
	}
	errno = saved;
}

static int followed(int fd)
{
	return area && fd >= 0 && fd < FILES && files[fd].known;
}

/* A change in progress: the map is locked until `done`. */
struct change { int map, old, from; struct head head; };

static int start(struct change *change, int fd, int create)
{
	char name[512];
	struct stat st = { .st_dev = files[fd].dev, .st_ino = files[fd].ino };
	name_of(name, sizeof name, area, &st, "map");
	for (;;) {
		change->map = raw_open(name, O_RDWR | (create ? O_CREAT : 0), 0600);
		if (change->map < 0) {
			if (!create && errno == ENOENT)
				return 0;
			die("open", name);
		}
		lock(change->map, F_WRLCK);
		struct stat mine, now;
		/* Forgotten while we waited? */
		if (fstat(change->map, &mine) == 0 && stat(name, &now) == 0 && mine.st_ino == now.st_ino)
			break;
		syscall(SYS_close, change->map);
	}
	change->old = change->from = -1;
	if (syscall(SYS_pread64, change->map, &change->head, sizeof change->head, (int64_t) 0) != sizeof change->head) {
		memset(&change->head, 0, sizeof change->head);
		change->head.magic = MAGIC;
		if (fstat(fd, &st) != 0)
			die("stat", files[fd].path);
		change->head.durable_size = st.st_size;
		snprintf(change->head.path, sizeof change->head.path, "%s", files[fd].path);
		write_all(change->map, (char *) &change->head, sizeof change->head, 0);
	}
	return 1;
}

/* Copies the blocks of a range aside that were not yet, as far as they are durable. */
static void keep(struct change *change, int fd, int64_t from, int64_t until)
{
	if (until > change->head.durable_size)
		until = change->head.durable_size;
	for (int64_t block = from / BLOCK; block * BLOCK < until; block++) {
		char kept = 0, bytes[BLOCK];
		int64_t place = (int64_t) sizeof(struct head) + block;
		if (syscall(SYS_pread64, change->map, &kept, (size_t) 1, place) == 1 && kept)
			continue;
		if (change->old < 0) {
			char name[512];
			struct stat st = { .st_dev = files[fd].dev, .st_ino = files[fd].ino };
			name_of(name, sizeof name, area, &st, "old");
			change->old = raw_open(name, O_RDWR | O_CREAT, 0600);
			snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
			change->from = raw_open(name, O_RDONLY, 0);
			if (change->old < 0 || change->from < 0)
				die("open", name);
		}
		read_block(change->from, block * BLOCK, bytes);
		write_all(change->old, bytes, BLOCK, block * BLOCK);
		kept = 1;
		write_all(change->map, &kept, 1, place);
	}
}

static void done(struct change *change)
{
	int saved = errno;
	if (change->old >= 0)
		syscall(SYS_close, change->old);
	if (change->from >= 0)
		syscall(SYS_close, change->from);
	/* Lets go of the lock. */
	syscall(SYS_close, change->map);
	errno = saved;
}

static int64_t length_of(const struct iovec *parts, int count)
{
	int64_t length = 0;
	for (int i = 0; i < count; i++)
		length += (int64_t) parts[i].iov_len;
	return length;
}

static int64_t position(int fd)
{
	struct stat st;
	if ((fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &st) == 0)
		return st.st_size;
	return lseek(fd, 0, SEEK_CUR);
}

#define CHANGED(fd, from, length, call) \
	do { \
		struct change change; \
		start(&change, fd, 1); \
		int64_t first = (from); \
		keep(&change, fd, first, first + (int64_t) (length)); \
		__typeof__(call) result = call; \
		done(&change); \
		return result; \
	} while (0)

ssize_t write(int fd, const void *bytes, size_t length)
{
	REAL(ssize_t, write, int, const void *, size_t);
	if (!followed(fd))
		return real(fd, bytes, length);
	CHANGED(fd, position(fd), length, real(fd, bytes, length));
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	REAL(ssize_t, writev, int, const struct iovec *, int);
	if (!followed(fd))
		return real(fd, parts, count);
	CHANGED(fd, position(fd), length_of(parts, count), real(fd, parts, count));
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at)
{
	REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	if (!followed(fd))
		return real(fd, bytes, length, at);
	CHANGED(fd, at, length, real(fd, bytes, length, at));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
	REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
	if (!followed(fd))
		return real(fd, parts, count, at);
	CHANGED(fd, at, length_of(parts, count), real(fd, parts, count, at));
}

int ftruncate(int fd, off_t length)
{
	REAL(int, ftruncate, int, off_t);
	if (!followed(fd))
		return real(fd, length);
	CHANGED(fd, length, INT64_MAX / 2, real(fd, length));
}

int truncate(const char *path, off_t length)
{
	int fd = open(path, O_RDWR);
	if (fd < 0)
		return -1;
	int result = ftruncate(fd, length), saved = errno;
	close(fd);
	errno = saved;
	return result;
}

/* A longer file is like a written one: its new size is not durable. */
int fallocate(int fd, int mode, off_t at, off_t length)
{
	REAL(int, fallocate, int, int, off_t, off_t);
	if (!followed(fd))
		return real(fd, mode, at, length);
	CHANGED(fd, at, length, real(fd, mode, at, length));
}

int posix_fallocate(int fd, off_t at, off_t length)
{
	REAL(int, posix_fallocate, int, off_t, off_t);
	if (!followed(fd))
		return real(fd, at, length);
	CHANGED(fd, at, 0, real(fd, at, length));
}

/* All that was written is durable now. The disk itself need not be troubled. */
static int synced(int fd)
{
	struct change change;
	if (files[fd].deaf || !start(&change, fd, 0))
		return 0;
	struct stat st;
	if (fstat(fd, &st) != 0)
		die("stat", files[fd].path);
	change.head.durable_size = st.st_size;
	write_all(change.map, (char *) &change.head, sizeof change.head, 0);
	syscall(SYS_ftruncate, change.map, (off_t) sizeof change.head);
	done(&change);
	return 0;
}

int fsync(int fd)
{
	REAL(int, fsync, int);
	return followed(fd) ? synced(fd) : area ? 0 : real(fd);
}

int fdatasync(int fd)
{
	REAL(int, fdatasync, int);
	return followed(fd) ? synced(fd) : area ? 0 : real(fd);
}

/* Begins to write, and promises nothing. */
int sync_file_range(int fd, off_t at, off_t length, unsigned int flags)
{
	REAL(int, sync_file_range, int, off_t, off_t, unsigned int);
	return area ? 0 : real(fd, at, length, flags);
}

int open(const char *path, int flags, ...)
{
	REAL(int, open, const char *, int, ...);
	va_list rest;
	va_start(rest, flags);
	int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
	va_end(rest);
	int fd = real(path, flags, mode);
	opened(fd, path, flags);
	return fd;
}

int openat(int directory, const char *path, int flags, ...)
{
	REAL(int, openat, int, const char *, int, ...);
	va_list rest;
	va_start(rest, flags);
	int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
	va_end(rest);
	int fd = real(directory, path, flags, mode);
	if (directory == AT_FDCWD || path[0] == '/')
		opened(fd, path, flags);
	return fd;
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int directory, const char *path, int flags, ...) __attribute__((alias("openat")));
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) __attribute__((alias("pwritev")));
int ftruncate64(int fd, off_t length) __attribute__((alias("ftruncate")));
int truncate64(const char *path, off_t length) __attribute__((alias("truncate")));
int fallocate64(int fd, int mode, off_t at, off_t length) __attribute__((alias("fallocate")));
int posix_fallocate64(int fd, off_t at, off_t length) __attribute__((alias("posix_fallocate")));

int close(int fd)
{
	REAL(int, close, int);
	if (fd >= 0 && fd < FILES)
		files[fd].known = 0;
	return real(fd);
}

/* The last name of a file is taken away: nothing is to be brought back. */
static void goes(const char *path)
{
	struct stat st;
	int saved = errno;
	if (inside(path) && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1)
		forget(&st);
	errno = saved;
}

int unlink(const char *path)
{
	REAL(int, unlink, const char *);
	goes(path);
	return real(path);
}

int rename(const char *from, const char *to)
{
	REAL(int, rename, const char *, const char *);
	if (inside(from) && inside(to)) {
		goes(to);
		int fd = open(from, O_RDONLY);
		struct change change;
		if (fd >= 0 && followed(fd) && start(&change, fd, 0)) {
			snprintf(change.head.path, sizeof change.head.path, "%s", inside(to));
			write_all(change.map, (char *) &change.head, sizeof change.head, 0);
			done(&change);
		}
		if (fd >= 0)
			close(fd);
	}
	return real(from, to);
}

#else

/* powerloss DATA AREA all|random SEED: what the disk holds after the cut. */

static uint64_t state;
static long restored, torn, kept_new, cut_short, strangers;

static uint64_t next_random(void)
{
	state += 0x9e3779b97f4a7c15;
	uint64_t z = state;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* Leaves some sectors of the block as they are and takes the others from `old`. */
static void tear(int fd, int64_t at, const char *old)
{
	char now[BLOCK];
	read_block(fd, at, now);
	uint64_t which = next_random();
	for (int i = 0; i < BLOCK / SECTOR; i++)
		if (which >> i & 1)
			memcpy(now + i * SECTOR, old + i * SECTOR, SECTOR);
	write_all(fd, now, BLOCK, at);
	torn++;
}

static void take_back(int fd, int64_t at, const char *old, int whole)
{
	switch (whole ? 0 : next_random() % 3) {
	case 0:
		write_all(fd, old, BLOCK, at);
		restored++;
		break;
	case 1:
		tear(fd, at, old);
		break;
	default:
		kept_new++;
	}
}

static int64_t size_after(int64_t durable, int64_t now, int whole)
{
	if (whole || durable == now)
		return durable;
	switch (next_random() % 3) {
	case 0:
		return durable;
	case 1:
		return now;
	default:
		if (now < durable)
			return now;
		return durable + (int64_t) (next_random() % (uint64_t) ((now - durable) / BLOCK + 1)) * BLOCK;
	}
}

static void cut_file(const char *path, const char *within, const char *area, const struct stat *st, int whole)
{
	char name[1200], bytes[BLOCK];
	struct head head;
	name_of(name, sizeof name, area, st, "map");
	int map = raw_open(name, O_RDONLY, 0);
	if (map < 0)
		return;
	if (read(map, &head, sizeof head) != sizeof head || head.magic != MAGIC) {
		close(map);
		return;
	}
	if (strcmp(head.path, within) != 0) {
		strangers++;
		close(map);
		return;
	}
	int fd = raw_open(path, O_RDWR, 0);
	if (fd < 0)
		die("open", path);
	name_of(name, sizeof name, area, st, "old");
	int old = raw_open(name, O_RDONLY, 0);
	int64_t size = size_after(head.durable_size, st->st_size, whole);
	if (ftruncate(fd, size) != 0)
		die("truncate", path);
	cut_short += size < st->st_size;
	int64_t durable_blocks = (head.durable_size + BLOCK - 1) / BLOCK;
	for (int64_t block = 0; block * BLOCK < size; block++) {
		int64_t at = block * BLOCK;
		char copied = 0;
		if (block >= durable_blocks) {
			memset(bytes, 0, BLOCK);
			take_back(fd, at, bytes, whole);
			continue;
		}
		if (pread(map, &copied, 1, (int64_t) sizeof head + block) != 1 || !copied)
			continue;
		if (old < 0)
			die("open", name);
		read_block(old, at, bytes);
		/* What was cut off cannot have stayed as it was before. */
		take_back(fd, at, bytes, whole || at >= st->st_size);
	}
	if (ftruncate(fd, size) != 0)
		die("truncate", path);
	if (old >= 0)
		close(old);
	close(fd);
	close(map);
}

static void walk(const char *root, const char *within, const char *area, int whole)
{
	char path[1024];
	snprintf(path, sizeof path, "%s/%s", root, within);
	DIR *directory = opendir(path);
	if (!directory)
		die("open", path);
	struct dirent *entry;
	while ((entry = readdir(directory))) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		char below[512], full[1600];
		snprintf(below, sizeof below, "%s%s%s", within, *within ? "/" : "", entry->d_name);
		snprintf(full, sizeof full, "%s/%s", root, below);
		struct stat st;
		if (stat(full, &st) != 0)
			continue;
		if (S_ISDIR(st.st_mode))
			walk(root, below, area, whole);
		else if (S_ISREG(st.st_mode))
			cut_file(full, below, area, &st, whole);
	}
	closedir(directory);
}

int main(int count, char **arguments)
{
	if (count != 5) {
		fprintf(stderr, "usage: powerloss DATA AREA all|random SEED\n");
		return 2;
	}
	state = strtoull(arguments[4], NULL, 10);
	walk(arguments[1], "", arguments[2], strcmp(arguments[3], "all") == 0);
	printf("%ld blocks lost, %ld torn, %ld unsynced blocks kept, %ld files cut, %ld strangers\n", restored, torn, kept_new, cut_short,
	       strangers);
	return 0;
}

#endif
