/* One thread per vCPU: touches what is declared, verifies its share, sleeps. */
#ifndef VMP_WORKERS_H
#define VMP_WORKERS_H

#include "arena.h"
#include "library.h"
#include "pattern.h"

#include <pthread.h>

struct vmp_team;

/*
 * A worker owns an equal share of the arena's pages: it populates them (so
 * they are first touched by its vCPU) and verifies them, slice by slice.
 */
struct vmp_worker {
	struct vmp_team *team;
	pthread_t thread;
	unsigned int vcpu;
	uint64_t random;
	uint64_t first_page, end_page, next_page;
	double verify_debt;
	uint64_t cursor[VMP_MAX_TOUCHES];
	uint64_t burst_line[VMP_MAX_TOUCHES], burst_left[VMP_MAX_TOUCHES];
	double touch_debt[VMP_MAX_TOUCHES];
	_Atomic uint64_t reads, writes, calls, verified_pages, late_ticks;
} __attribute__((aligned(128)));

struct vmp_team {
	struct vmp_pattern *pattern;
	struct vmp_arena *arena;
	struct vmp_library library;
	unsigned int nworkers;
	_Atomic int phase;
	_Atomic int going;
	_Atomic double speed;	/* factor of all declared rates */
	_Atomic unsigned int populated;
	_Atomic unsigned int halts_asked;
	pthread_barrier_t halted;
	struct vmp_worker workers[VMP_MAX_VCPUS];
};

/* Start one pinned worker per vCPU; they populate first.  0 or -errno. */
int vmp_team_start(struct vmp_team *team, struct vmp_pattern *pattern, struct vmp_arena *arena);

/* Stop all touching, verify every byte of the arena exactly, go on. */
void vmp_team_verify(struct vmp_team *team);

#endif
