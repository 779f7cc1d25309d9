/* Zipf-distributed ranks with exponent 0.99, the usual skew of key-value loads (YCSB). */
#ifndef VMP_ZIPF_H
#define VMP_ZIPF_H

#include <stdint.h>

/* Return a rank in [0, @ranks) for @uniform in [0, 1); rank 0 is the hottest. */
uint64_t vmp_zipf_rank(double uniform, uint64_t ranks);

#endif
