/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How does a CPU pay for its DRAM accesses?  By dilated real time.
 *
 * 1. A fetched line costs the latency of its node pair now, over the fetches that overlap (mlp), times the
 *    dilation.  A written-back line stalls nobody, but loads what it passes.
 * 2. The CPU's thread sleeps the debt off, in pieces.  A sleep that took too long pays for what comes next.
 * 3. Whoever pays first after an interval has ended takes in its traffic, which renews the latencies.
 *
 * Each CPU has a clock of emulated time, by which its traffic becomes rates.  In a guest it runs by what the
 * guest is charged: what the emulator works for it is no time.  Outside of guests, also when the CPU is
 * idle, it runs by real time over the dilation.
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
	struct {
		double clock_ns;
		uint64_t accesses[VMP_MODEL_NODES];
	} counted[VMP_METER_CPUS];
	double rates[VMP_METER_CPUS][VMP_MODEL_NODES];
	vmp_node_pairs latencies;
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
	cpu->stall.outside_since_ns = now_ns();
}

void vmp_stall_enter(struct vmp_cpu *cpu, bool guest)
{
	struct vmp_stall *stall = &cpu->stall;
	double now = now_ns(), never = 0, sum;

	if (guest == !stall->outside_since_ns)
		return;
	if (!guest) {
		__atomic_store(&stall->outside_since_ns, &now, __ATOMIC_RELEASE);
		return;
	}
	/* In this order a reader in between sees too little for once, and never too much. */
	sum = stall->outside_ns + now - stall->outside_since_ns;
	__atomic_store(&stall->outside_since_ns, &never, __ATOMIC_RELEASE);
	__atomic_store(&stall->outside_ns, &sum, __ATOMIC_RELEASE);
}

/* Read the emulated time of a CPU.  It may go back by what vmp_stall_enter() is about to add. */
static double clock_ns(const struct vmp_stall *stall, double now)
{
	double charged, outside, since;

	__atomic_load(&stall->charged_ns, &charged, __ATOMIC_ACQUIRE);
	__atomic_load(&stall->outside_ns, &outside, __ATOMIC_ACQUIRE);
	__atomic_load(&stall->outside_since_ns, &since, __ATOMIC_ACQUIRE);
	if (since)
		outside += fmax(now - since, 0);
	return charged + outside / meter.arguments.model.dilation;
}

/* Take in what a CPU accessed since the last call, if time has passed there. */
static void collect(uint32_t cpu, double now)
{
	const struct vmp_stall *stall = &meter.cpus[cpu].stall;
	double clock = clock_ns(stall, now), passed = clock - traffic.counted[cpu].clock_ns;
	double accesses[VMP_MODEL_NODES] = { 0 };

	if (passed <= 0)
		return;
	for (uint32_t j = 0; j < meter.arguments.model.node_count; j++) {
		uint64_t total = __atomic_load_n(&stall->accesses[j], __ATOMIC_RELAXED);

		accesses[j] = (double)(total - traffic.counted[cpu].accesses[j]);
		traffic.counted[cpu].accesses[j] = total;
	}
	traffic.counted[cpu].clock_ns = clock;
	vmp_rates_update(traffic.rates[cpu], accesses, passed);
}

static void renew_latencies(void)
{
	vmp_node_pairs rates = { 0 }, latencies;

	for (uint32_t i = 0; i < meter.arguments.machine.cpu_count; i++) {
		for (uint32_t j = 0; j < meter.arguments.model.node_count; j++)
			rates[meter.cpus[i].stall.node][j] += traffic.rates[i][j];
	}
	vmp_model_latencies(&meter.arguments.model, rates, latencies);
	/* Other threads read these without a lock: each is whole, if not of one instant. */
	for (uint32_t k = 0; k < meter.arguments.model.node_count; k++) {
		for (uint32_t j = 0; j < meter.arguments.model.node_count; j++)
			__atomic_store(&traffic.latencies[k][j], &latencies[k][j], __ATOMIC_RELAXED);
	}
}

static void collect_all(double now)
{
	for (uint32_t i = 0; i < meter.arguments.machine.cpu_count; i++)
		collect(i, now);
	traffic.began_ns = now;
}

void vmp_stall_restart(void)
{
	if (!meter.arguments.model.dilation)
		return;
	pthread_mutex_lock(&traffic.lock);
	collect_all(now_ns());
	memset(traffic.rates, 0, sizeof(traffic.rates));
	renew_latencies();
	pthread_mutex_unlock(&traffic.lock);
}

static void end_interval(double now)
{
	if (now - traffic.began_ns < INTERVAL_NS || pthread_mutex_trylock(&traffic.lock))
		return;
	if (now - traffic.began_ns >= INTERVAL_NS) {
		collect_all(now);
		renew_latencies();
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
	double cost, charged;

	vmp_add(&stall->accesses[node], 1);
	if (!waits)
		return;
	__atomic_load(&traffic.latencies[stall->node][node], &cost, __ATOMIC_RELAXED);
	cost /= model->mlp;
	charged = stall->charged_ns + cost;
	__atomic_store(&stall->charged_ns, &charged, __ATOMIC_RELEASE);
	stall->unpublished_ns += cost;
	stall->debt_ns += cost * model->dilation;
	if (stall->debt_ns >= PIECE_NS)
		pay(stall);
}

void vmp_stall_publish(struct vmp_cpu *cpu)
{
	uint64_t whole = (uint64_t)cpu->stall.unpublished_ns;

	vmp_add(&vmp_cpu_guest(cpu)->stall_ns, whole);
	cpu->stall.unpublished_ns -= (double)whole;
}
