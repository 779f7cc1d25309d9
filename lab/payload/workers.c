#include "workers.h"
#include "zipf.h"

#include "../meter/magic.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <time.h>

#define NS_PER_MS 1000000LL
/* Touches between two looks at the clock, for a stream of unlimited rate. */
#define CHUNK 256
/* Touches of a tick that are counted at once: what a window that ends within a tick may miss of it. */
#define TICK_CHUNK 64

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 * NS_PER_MS + now.tv_nsec;
}

static void sleep_until(int64_t ns)
{
	struct timespec until = { ns / (1000 * NS_PER_MS), ns % (1000 * NS_PER_MS) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static uint64_t next_random(struct vmp_worker *worker)
{
	/* xorshift64*: one state word, good enough high bits. */
	worker->random ^= worker->random >> 12;
	worker->random ^= worker->random << 25;
	worker->random ^= worker->random >> 27;
	return worker->random * 0x2545f4914f6cdd1dULL;
}

/* Return @random scaled to [0, @limit). */
static uint64_t below(uint64_t random, uint64_t limit)
{
	return (uint64_t)(((unsigned __int128)random * limit) >> 64);
}

/* Return the arena line that is the @index-th of the touch's ranges. */
static uint64_t line_at(const struct vmp_touch *touch, uint64_t index)
{
	size_t r = 0;

	while (index >= touch->ranges[r].lines)
		index -= touch->ranges[r++].lines;
	return touch->ranges[r].first_line + index;
}

static uint64_t next_step_line(struct vmp_worker *worker, size_t t)
{
	const struct vmp_touch *touch = &worker->team->pattern->touches[t];
	uint64_t steps = (touch->lines + touch->stride_lines - 1) / touch->stride_lines;
	uint64_t step;

	if (touch->order == VMP_SEQUENTIAL)
		step = worker->cursor[t]++ % steps;
	else if (touch->order == VMP_RANDOM)
		step = below(next_random(worker), steps);
	else
		step = vmp_zipf_rank((double)(next_random(worker) >> 11) * 0x1p-53, steps);
	return line_at(touch, step * touch->stride_lines);
}

static uint64_t next_line(struct vmp_worker *worker, size_t t)
{
	const struct vmp_touch *touch = &worker->team->pattern->touches[t];

	if (touch->order == VMP_SEQUENTIAL || touch->burst <= 1)
		return next_step_line(worker, t);
	if (!worker->burst_left[t]--) {
		worker->burst_line[t] = next_step_line(worker, t);
		worker->burst_left[t] = touch->burst - 1;
		return worker->burst_line[t];
	}
	/* Ranges begin and end at whole MiB, so the page is all inside. */
	return worker->burst_line[t] / VMP_PAGE_LINES * VMP_PAGE_LINES +
	       below(next_random(worker), VMP_PAGE_LINES);
}

static void make_touches(struct vmp_worker *worker, size_t t, uint64_t count)
{
	unsigned int write_percent = worker->team->pattern->touches[t].write_percent;
	uint64_t writes = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t line = next_line(worker, t);

		if (write_percent && below(next_random(worker), 100) < write_percent) {
			vmp_arena_write(worker->team->arena, line);
			writes++;
		} else {
			vmp_arena_read(worker->team->arena, line);
		}
	}
	worker->writes += writes;
	worker->reads += count - writes;
	vmp_magic_work(count);
}

static int is_current(const struct vmp_worker *worker, const struct vmp_touch *touch)
{
	return touch->vcpus >> worker->vcpu & 1 &&
	       (touch->phase < 0 || touch->phase == worker->team->phase);
}

static void touch_for_a_tick(struct vmp_worker *worker, int64_t tick_end_ns)
{
	const struct vmp_pattern *pattern = worker->team->pattern;

	for (size_t t = 0; t < pattern->ntouches; t++) {
		const struct vmp_touch *touch = &pattern->touches[t];

		if (!is_current(worker, touch))
			continue;
		if (isinf(touch->rate_per_ms)) {
			while (now_ns() < tick_end_ns)
				make_touches(worker, t, CHUNK);
			continue;
		}
		worker->touch_debt[t] += touch->rate_per_ms * pattern->tick_ms * worker->team->speed;
		for (; worker->touch_debt[t] >= TICK_CHUNK; worker->touch_debt[t] -= TICK_CHUNK)
			make_touches(worker, t, TICK_CHUNK);
		make_touches(worker, t, (uint64_t)worker->touch_debt[t]);
		worker->touch_debt[t] -= floor(worker->touch_debt[t]);
	}
}

static void call_for_a_tick(struct vmp_worker *worker)
{
	struct vmp_team *team = worker->team;
	uint64_t calls = team->pattern->calls_per_ms * team->pattern->tick_ms;

	if (!team->library.functions)
		return;
	for (uint64_t i = 0; i < calls; i++)
		vmp_library_call(&team->library, below(next_random(worker), team->library.functions));
	worker->calls += calls;
}

static void verify_slice(struct vmp_worker *worker, uint64_t pages)
{
	for (; pages && worker->first_page < worker->end_page; pages--) {
		vmp_arena_verify_page(worker->team->arena, worker->next_page++,
				      worker->team->nworkers);
		worker->verified_pages++;
		if (worker->next_page == worker->end_page)
			worker->next_page = worker->first_page;
	}
}

static void verify_for_a_tick(struct vmp_worker *worker)
{
	const struct vmp_pattern *pattern = worker->team->pattern;

	worker->verify_debt += (double)pattern->verify_kib_per_s / 4 * pattern->tick_ms / 1000 /
			       worker->team->nworkers;
	verify_slice(worker, (uint64_t)worker->verify_debt);
	worker->verify_debt -= floor(worker->verify_debt);
}

/* Each vCPU checks all pages: it reads the copies that its node has of them, if there are any. */
static void verify_all(struct vmp_worker *worker)
{
	uint64_t npages = worker->team->arena->npages;

	for (uint64_t i = 0; i < npages; i++)
		vmp_arena_verify_page(worker->team->arena, (worker->first_page + i) % npages, 0);
	worker->verified_pages += npages;
}

static void verify_library(struct vmp_team *team)
{
	for (uint64_t i = 0; i < team->library.functions; i++)
		vmp_library_call(&team->library, i);
}

/* Take part in a stop of the whole team: nobody writes between the barriers. */
static void halt_and_verify(struct vmp_worker *worker)
{
	pthread_barrier_wait(&worker->team->halted);
	verify_all(worker);
	if (!worker->vcpu)
		verify_library(worker->team);
	pthread_barrier_wait(&worker->team->halted);
}

static void *run_worker(void *argument)
{
	struct vmp_worker *worker = argument;
	struct vmp_team *team = worker->team;
	int64_t tick_ns = team->pattern->tick_ms * NS_PER_MS, tick_end_ns;
	unsigned int halts_done = 0;

	vmp_arena_populate(team->arena, worker->first_page, worker->end_page);
	team->populated++;
	pthread_barrier_wait(&team->halted);
	for (tick_end_ns = now_ns() + tick_ns;; tick_end_ns += tick_ns) {
		if (team->halts_asked != halts_done) {
			halt_and_verify(worker);
			halts_done++;
		}
		vmp_magic_identify(team->pattern->guest_id);
		if (!team->going) {
			sleep_until(now_ns() + 5 * tick_ns);
			tick_end_ns = now_ns();
			continue;
		}
		touch_for_a_tick(worker, tick_end_ns);
		call_for_a_tick(worker);
		verify_for_a_tick(worker);
		if (now_ns() > tick_end_ns) {
			/* What was not done in time is dropped: rates are ceilings. */
			tick_end_ns = now_ns();
			worker->late_ticks++;
		}
		sleep_until(tick_end_ns);
	}
	return NULL;
}

static void worker_init(struct vmp_team *team, unsigned int vcpu)
{
	struct vmp_worker *worker = &team->workers[vcpu];

	worker->team = team;
	worker->vcpu = vcpu;
	worker->random = (team->pattern->seed + 1) * 0x9e3779b97f4a7c15ULL + vcpu + 1;
	worker->first_page = team->arena->npages * vcpu / team->nworkers;
	worker->end_page = team->arena->npages * (vcpu + 1) / team->nworkers;
	worker->next_page = worker->first_page;
	/* vCPUs that stream through one range start apart, not in lockstep. */
	for (size_t t = 0; t < team->pattern->ntouches; t++)
		worker->cursor[t] = team->pattern->touches[t].lines * vcpu / team->nworkers;
}

static int start_pinned(struct vmp_worker *worker)
{
	pthread_attr_t attributes;
	cpu_set_t cpus;
	int err;

	CPU_ZERO(&cpus);
	CPU_SET(worker->vcpu, &cpus);
	pthread_attr_init(&attributes);
	pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
	err = pthread_create(&worker->thread, &attributes, run_worker, worker);
	pthread_attr_destroy(&attributes);
	return -err;
}

int vmp_team_start(struct vmp_team *team, struct vmp_pattern *pattern, struct vmp_arena *arena)
{
	int err = vmp_library_init(&team->library, pattern->library_mib);

	team->pattern = pattern;
	team->arena = arena;
	team->nworkers = pattern->nvcpus;
	team->going = !pattern->wait;
	team->speed = 1;
	pthread_barrier_init(&team->halted, NULL, team->nworkers + 1);
	for (unsigned int vcpu = 0; vcpu < team->nworkers; vcpu++)
		worker_init(team, vcpu);
	for (unsigned int vcpu = 0; !err && vcpu < team->nworkers; vcpu++)
		err = start_pinned(&team->workers[vcpu]);
	if (!err)
		pthread_barrier_wait(&team->halted);
	return err;
}

void vmp_team_verify(struct vmp_team *team)
{
	team->halts_asked++;
	pthread_barrier_wait(&team->halted);
	pthread_barrier_wait(&team->halted);
}
