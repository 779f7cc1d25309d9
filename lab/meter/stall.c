/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How does a CPU pay for its DRAM accesses?  By dilated real time.
 *
 * 1. A fetched line costs the latency of its node pair now, over the fetches that overlap (mlp), times the
 *    dilation.  A written-back line stalls nobody, but loads what it passes.
 * 2. The CPU's thread sleeps the debt off, in pieces.  A sleep that took too long pays for what comes next.
 * 3. Whoever pays first after an interval has ended takes in its traffic, which renews the latencies.
 *
 * The sleeps are many times longer than the emulation of the same code, so that the speed and the load of
 * the machine outside matter little, but for queues: traffic is counted by real time (docs/meter.md).
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "meter.h"

#define PIECE_NS 2e6
/* What one overlong sleep may pay in advance: beyond that the machine outside stood still. */
#define CREDIT_NS 20e6
#define INTERVAL_NS 5e6

static struct {
	pthread_mutex_t lock;
	double began_ns;
	uint64_t counted[VMP_METER_CPUS][VMP_MODEL_NODES];
	struct vmp_load load;
} traffic = { .lock = PTHREAD_MUTEX_INITIALIZER };

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

void vmp_stall_init(struct vmp_cpu *cpu, int32_t nid)
{
	int node = vmp_model_node(&meter.arguments.model, nid);

	/* Without a model nothing is ever charged. */
	cpu->stall.node = node < 0 ? 0 : (uint32_t)node;
}

/* Add up what was accessed since the last call. */
static void collect(vmp_node_pairs ret)
{
	memset(ret, 0, sizeof(vmp_node_pairs));
	for (uint32_t i = 0; i < meter.arguments.machine.cpu_count; i++) {
		const struct vmp_stall *stall = &meter.cpus[i].stall;

		for (uint32_t j = 0; j < meter.arguments.model.node_count; j++) {
			uint64_t total = __atomic_load_n(&stall->accesses[j], __ATOMIC_RELAXED);

			ret[stall->node][j] += (double)(total - traffic.counted[i][j]);
			traffic.counted[i][j] = total;
		}
	}
}

void vmp_stall_restart(void)
{
	vmp_node_pairs forgotten, idle = { 0 };

	pthread_mutex_lock(&traffic.lock);
	collect(forgotten);
	memset(&traffic.load, 0, sizeof(traffic.load));
	vmp_model_latencies(&meter.arguments.model, idle, traffic.load.latencies);
	traffic.began_ns = now_ns();
	pthread_mutex_unlock(&traffic.lock);
}

static void end_interval(double now)
{
	vmp_node_pairs accesses;

	if (now - traffic.began_ns < INTERVAL_NS || pthread_mutex_trylock(&traffic.lock))
		return;
	if (now - traffic.began_ns >= INTERVAL_NS) {
		collect(accesses);
		vmp_load_update(&traffic.load, &meter.arguments.model, accesses,
				(now - traffic.began_ns) / meter.arguments.model.dilation);
		traffic.began_ns = now;
	}
	pthread_mutex_unlock(&traffic.lock);
}

static void pay(struct vmp_stall *stall)
{
	const struct timespec piece = { .tv_nsec = (long)PIECE_NS };
	double start = now_ns();

	end_interval(start);
	nanosleep(&piece, NULL);
	stall->debt_ns = fmax(stall->debt_ns - (now_ns() - start), -CREDIT_NS);
}

void vmp_stall_charge(struct vmp_cpu *cpu, int32_t nid, bool waits)
{
	const struct vmp_memory_model *model = &meter.arguments.model;
	uint32_t node = (uint32_t)vmp_model_node(model, nid);
	struct vmp_stall *stall = &cpu->stall;
	double latency;

	vmp_add(&stall->accesses[node], 1);
	if (!waits)
		return;
	__atomic_load(&traffic.load.latencies[stall->node][node], &latency, __ATOMIC_RELAXED);
	stall->unpublished_ns += latency / model->mlp;
	stall->debt_ns += latency / model->mlp * model->dilation;
	if (stall->debt_ns >= PIECE_NS)
		pay(stall);
}

void vmp_stall_publish(struct vmp_cpu *cpu)
{
	uint64_t whole = (uint64_t)cpu->stall.unpublished_ns;

	vmp_add(&vmp_cpu_guest(cpu)->stall_ns, whole);
	cpu->stall.unpublished_ns -= (double)whole;
}
