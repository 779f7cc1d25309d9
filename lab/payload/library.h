/* Code that all vCPUs call: many small functions, as a large shared library has them. */
#ifndef VMP_LIBRARY_H
#define VMP_LIBRARY_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * Function i is one line of 64 bytes that returns i, as those of "An Analysis of
 * Shared Library Performance on NUMA Architectures" do (section 4.1.2): what is
 * called wrong or changed is noticed.
 */
struct vmp_library {
	const uint8_t *code;
	uint64_t functions;
	_Atomic uint64_t wrong;	/* calls that returned something else */
};

/* Make @mib of code, 0: none.  Returns 0 or -errno. */
int vmp_library_init(struct vmp_library *library, uint64_t mib);

/* Call function @i of @library->functions. */
void vmp_library_call(struct vmp_library *library, uint64_t i);

#endif
