/*
 * Source: the continuous approximation by inversion.  The distribution function
 * of a density x^-s on [1, n + 1) is (1 - x^(1-s)) / (1 - (n+1)^(1-s)); solved for x.
 */
#include "zipf.h"

#include <math.h>

#define EXPONENT 0.99

uint64_t vmp_zipf_rank(double uniform, uint64_t ranks)
{
	double span = pow((double)ranks + 1, 1 - EXPONENT) - 1;
	double x = pow(1 + uniform * span, 1 / (1 - EXPONENT));
	uint64_t rank = (uint64_t)x - 1;

	return rank < ranks ? rank : ranks - 1;
}
