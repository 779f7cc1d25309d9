/*
 * How fast do CPUs read the memory of nodes?  One pinned thread per CPU streams through memory of its own
 * on each of the nodes, a chunk here, a chunk there, and all threads at once.
 *
 * A thread that chases reads one line at a time instead: where it reads next depends on what it read, so that
 * its time for each line is the latency of memory, while the others stream as much as it is.
 *
 * Private memory bound to a node, so that no page is shared and none is elsewhere; larger than the caches by
 * the caller's choice.  What a thread got from a node is its bytes over the CPU time that took: waiting for
 * memory is CPU time, waiting for a CPU that others use is not.
 */
#include "core.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)1 << 20)
#define LINE_BYTES ((size_t)64)
#define CHASED_LINES 1024		/* between two looks at the clock */
/* Knuth's generator modulo 2^64: modulo any smaller power of two it comes to all lines, too. */
#define CHASE_FACTOR 6364136223846793005ULL
#define CHASE_STEP 1442695040888963407ULL
#define FILLED 0x0101010101010101ULL	/* what memset() left */
#define NODE_MASK_BITS 1024
#define BITS_PER_LONG (8 * sizeof(unsigned long))

struct vmp_stream_plan {
	const int32_t *nids;
	size_t nodes;
	size_t bytes;		/* of each thread on each node */
	int64_t duration_ns;
	_Atomic size_t ready;	/* threads whose memory is there */
	_Atomic bool go;
	_Atomic int error;	/* the first thread's that failed, -errno */
};

struct vmp_stream {
	struct vmp_stream_plan *plan;
	pthread_t thread;
	int cpu;
	size_t chased_bytes;	/* on each node, a power of two; 0: it streams */
	size_t first_node;	/* threads begin on different nodes */
	bool stays;		/* on the first one */
	char **buffers;		/* by node */
	uint64_t *read_bytes, *spent_ns;
	uint64_t sum;
};

static int64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void nap(void)
{
	const struct timespec nap = { .tv_nsec = 200000 };

	nanosleep(&nap, NULL);
}

static int pin(int cpu)
{
	size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
	cpu_set_t *set = CPU_ALLOC(cpu + 1);
	int ret;

	if (!set)
		return -ENOMEM;
	CPU_ZERO_S(bytes, set);
	CPU_SET_S(cpu, bytes, set);
	ret = sched_setaffinity(0, bytes, set) ? -errno : 0;
	CPU_FREE(set);
	return ret;
}

/* Return present memory on @nid, or NULL with -errno in @ret_error. */
static char *allocate(size_t bytes, int32_t nid, int *ret_error)
{
	unsigned long mask[NODE_MASK_BITS / BITS_PER_LONG] = { 0 };
	char *ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (ret == MAP_FAILED) {
		*ret_error = -errno;
		return NULL;
	}
	mask[(size_t)nid / BITS_PER_LONG] = 1UL << (size_t)nid % BITS_PER_LONG;
	if (syscall(SYS_mbind, ret, bytes, MPOL_BIND, mask, NODE_MASK_BITS + 1, 0)) {
		*ret_error = -errno;
		munmap(ret, bytes);
		return NULL;
	}
	madvise(ret, bytes, MADV_HUGEPAGE);
	memset(ret, 1, bytes);
	return ret;
}

static size_t bytes_of(const struct vmp_stream *stream)
{
	return stream->chased_bytes ? stream->chased_bytes : stream->plan->bytes;
}

static int prepare(struct vmp_stream *stream)
{
	int error = pin(stream->cpu);

	for (size_t n = 0; !error && n < stream->plan->nodes; n++) {
		if (stream->stays && n != stream->first_node)
			continue;
		stream->buffers[n] = allocate(bytes_of(stream), stream->plan->nids[n], &error);
	}
	return error;
}

static uint64_t read_chunk(const char *memory)
{
	const uint64_t *words = (const uint64_t *)memory;
	uint64_t sums[8] = { 0 };

	for (size_t i = 0; i < CHUNK_BYTES / sizeof(*words); i += 8) {
		for (size_t lane = 0; lane < 8; lane++)
			sums[lane] += words[i + lane];
	}
	return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

/* Read lines one after the other, as what was read tells the next; return the last one's number. */
static uint64_t chase(const char *memory, size_t lines, uint64_t at)
{
	for (size_t i = 0; i < CHASED_LINES; i++) {
		/* Nothing, but only the memory tells so. */
		uint64_t nothing = *(const volatile uint64_t *)(memory + at * LINE_BYTES) ^ FILLED;

		at = (at * CHASE_FACTOR + CHASE_STEP + nothing) & (lines - 1);
	}
	return at;
}

/* Read a bit of the memory of the @turn'th node; return how many bytes. */
static size_t read_some(struct vmp_stream *stream, size_t turn, size_t node)
{
	const struct vmp_stream_plan *plan = stream->plan;
	const char *memory = stream->buffers[node];
	size_t chunk = turn / plan->nodes % (plan->bytes / CHUNK_BYTES);

	if (stream->chased_bytes) {
		size_t lines = stream->chased_bytes / LINE_BYTES;

		stream->sum = chase(memory, lines, stream->sum & (lines - 1));
		return CHASED_LINES * LINE_BYTES;
	}
	stream->sum ^= read_chunk(memory + chunk * CHUNK_BYTES);
	return CHUNK_BYTES;
}

static void stream_until_end(struct vmp_stream *stream)
{
	const struct vmp_stream_plan *plan = stream->plan;
	int64_t end = now_ns(CLOCK_MONOTONIC) + plan->duration_ns;
	int64_t now = now_ns(CLOCK_THREAD_CPUTIME_ID);

	for (size_t turn = 0; now_ns(CLOCK_MONOTONIC) < end; turn++) {
		size_t node = (stream->first_node + (stream->stays ? 0 : turn)) % plan->nodes;
		int64_t start = now;

		stream->read_bytes[node] += read_some(stream, turn, node);
		now = now_ns(CLOCK_THREAD_CPUTIME_ID);
		stream->spent_ns[node] += (uint64_t)(now - start);
	}
}

static void *run_stream(void *argument)
{
	struct vmp_stream *stream = argument;
	struct vmp_stream_plan *plan = stream->plan;
	int error = prepare(stream), none = 0;

	if (error)
		atomic_compare_exchange_strong(&plan->error, &none, error);
	/* All wait for all, so that nobody measures while others still fault memory in. */
	plan->ready++;
	while (!plan->go)
		nap();
	if (!plan->error)
		stream_until_end(stream);
	for (size_t n = 0; n < plan->nodes; n++) {
		if (stream->buffers[n])
			munmap(stream->buffers[n], bytes_of(stream));
	}
	return NULL;
}

/* Polling and no barrier: how many threads there will be is known only when all could be started. */
static int run_streams(struct vmp_stream_plan *plan, struct vmp_stream *streams, size_t count)
{
	size_t started = 0;
	int error = 0, none = 0;

	while (!error && started < count) {
		error = -pthread_create(&streams[started].thread, NULL, run_stream, &streams[started]);
		started += !error;
	}
	if (error)
		atomic_compare_exchange_strong(&plan->error, &none, error);
	while (plan->ready < started)
		nap();
	plan->go = true;
	for (size_t i = 0; i < started; i++)
		pthread_join(streams[i].thread, NULL);
	return plan->error;
}

static int measure(struct vmp_stream_plan *plan, const struct vmp_buffer *cpus, const int32_t *chased_mib,
		   const int32_t *only, uint64_t *bytes, uint64_t *ns)
{
	struct vmp_stream *streams = calloc(cpus->count, sizeof(*streams));
	char **buffers = calloc(cpus->count * plan->nodes, sizeof(*buffers));
	int ret = -ENOMEM;

	if (streams && buffers) {
		for (size_t i = 0; i < cpus->count; i++) {
			streams[i] = (struct vmp_stream) {
				.plan = plan,
				.cpu = cpus->i32[i],
				.chased_bytes = (size_t)chased_mib[i] << 20,
				.first_node = only[i] < 0 ? i % plan->nodes : (size_t)only[i],
				.stays = only[i] >= 0,
				.buffers = buffers + i * plan->nodes,
				.read_bytes = bytes + i * plan->nodes,
				.spent_ns = ns + i * plan->nodes,
			};
		}
		ret = run_streams(plan, streams, cpus->count);
	}
	free(buffers);
	free(streams);
	return ret;
}

PyObject *vmp_measure_streams(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer cpus = { 0 }, chased = { 0 }, only = { 0 }, nids = { 0 };
	_cleanup_buffer_ struct vmp_buffer bytes = { 0 }, ns = { 0 };
	PyObject *cpus_object, *chased_object, *only_object, *nids_object, *bytes_object, *ns_object;
	struct vmp_stream_plan plan = { 0 };
	unsigned long long each, duration_ms;
	int error;

	if (!PyArg_ParseTuple(args, "OOOOKKOO:measure_streams", &cpus_object, &chased_object, &only_object,
			      &nids_object, &each, &duration_ms, &bytes_object, &ns_object) ||
	    !vmp_buffer_get(cpus_object, "cpus", VMP_INT32, false, &cpus) ||
	    !vmp_buffer_get(chased_object, "chased_mib", VMP_INT32, false, &chased) ||
	    !vmp_buffer_same_count(&cpus, "cpus", &chased, "chased_mib") ||
	    !vmp_buffer_get(only_object, "only", VMP_INT32, false, &only) ||
	    !vmp_buffer_same_count(&cpus, "cpus", &only, "only") ||
	    !vmp_buffer_get(nids_object, "nids", VMP_INT32, false, &nids) ||
	    !vmp_buffer_get(bytes_object, "read_bytes", VMP_UINT64, true, &bytes) ||
	    !vmp_buffer_get(ns_object, "spent_ns", VMP_UINT64, true, &ns) ||
	    !vmp_buffer_same_count(&bytes, "read_bytes", &ns, "spent_ns"))
		return NULL;
	if (!cpus.count || !nids.count || bytes.count != cpus.count * nids.count || each < CHUNK_BYTES) {
		PyErr_SetString(PyExc_ValueError, "need CPUs, nodes, a result for each pair, and 1 MiB or more");
		return NULL;
	}
	for (size_t i = 0; i < cpus.count; i++) {
		if (chased.i32[i] < 0 || (chased.i32[i] & (chased.i32[i] - 1))) {
			PyErr_Format(PyExc_ValueError, "%d MiB to chase in are no power of two", chased.i32[i]);
			return NULL;
		}
		if (only.i32[i] >= 0 && (size_t)only.i32[i] >= nids.count) {
			PyErr_Format(PyExc_ValueError, "there is no node number %d to read", only.i32[i]);
			return NULL;
		}
	}
	for (size_t n = 0; n < nids.count; n++) {
		if (nids.i32[n] < 0 || nids.i32[n] >= NODE_MASK_BITS) {
			PyErr_Format(PyExc_ValueError, "no node can have the id %d", nids.i32[n]);
			return NULL;
		}
	}

	plan.nids = nids.i32;
	plan.nodes = nids.count;
	plan.bytes = each / CHUNK_BYTES * CHUNK_BYTES;
	plan.duration_ns = (int64_t)duration_ms * 1000000;
	Py_BEGIN_ALLOW_THREADS
	error = measure(&plan, &cpus, chased.i32, only.i32, bytes.u64, ns.u64);
	Py_END_ALLOW_THREADS
	if (error)
		return vmp_result(error);
	Py_RETURN_NONE;
}
