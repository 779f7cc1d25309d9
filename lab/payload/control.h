/* The line protocol of a payload: one JSON object a second out, one word commands in. */
#ifndef VMP_CONTROL_H
#define VMP_CONTROL_H

#include "workers.h"

/*
 * Commands: "status"; "go" (see the word wait); "verify" (all memory and code, exactly); "phase N"; "speed N" (all
 * declared rates times N: what cannot be done in time is dropped, so a large N is "as fast as memory is");
 * "corrupt BYTE" (flips one bit of that byte of the arena, for tests of the verification); "quit".  Each is
 * answered by one JSON line, which ends with the NUMBER where the command begins with "@NUMBER ".
 */
struct vmp_control {
	struct vmp_team *team;
	int in, out;
	int64_t start_ns;
	int64_t phase_end_ns;
	int child;
	/* The number of the question that is being answered, 0 for what is said unasked. */
	uint64_t answers;
	char buffer[256];
	size_t length;
	int quit;
};

/* Report and obey until "quit" or, where @in is not a port, its end. */
void vmp_control_loop(struct vmp_control *control);

/* Tell why the payload cannot start. */
void vmp_control_error(int out, const char *message);

#endif
