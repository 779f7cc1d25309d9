/* Of how many pages is a rate?  Expectation and maximisation over given rates (model/touch_rates.py). */
#include "core.h"

#define VMP_MAX_ANSWERS 64
#define VMP_NEVER 1e-300

/* @likely[rate][answer]: the chance of an answer at a rate.  @pages[answer]: how many gave it. */
struct vmp_mixture {
	const double *likely;
	size_t rates;
	size_t answers;
};

/* One round: each rate's share grows by how much better it explains the answers than all shares together do. */
static void vmp_learn_once(const struct vmp_mixture *mixture, const double *pages, double total, double *share)
{
	double weight[VMP_MAX_ANSWERS] = { 0 };
	size_t rate, answer;

	for (rate = 0; rate < mixture->rates; rate++)
		for (answer = 0; answer < mixture->answers; answer++)
			weight[answer] += share[rate] * mixture->likely[rate * mixture->answers + answer];
	for (answer = 0; answer < mixture->answers; answer++)
		weight[answer] = pages[answer] / (weight[answer] > VMP_NEVER ? weight[answer] : VMP_NEVER) / total;

	for (rate = 0; rate < mixture->rates; rate++) {
		double better = 0;

		for (answer = 0; answer < mixture->answers; answer++)
			better += weight[answer] * mixture->likely[rate * mixture->answers + answer];
		share[rate] *= better;
		/* Numbers that are nearly too small to tell take the CPU a hundred times as long. */
		if (share[rate] < VMP_NEVER)
			share[rate] = 0;
	}
}

static void vmp_learn(const struct vmp_mixture *mixture, const double *pages, double *share, int rounds)
{
	double total = 0;

	for (size_t answer = 0; answer < mixture->answers; answer++)
		total += pages[answer];
	for (int round = 0; total > 0 && round < rounds; round++)
		vmp_learn_once(mixture, pages, total, share);
}

PyObject *vmp_learn_shares(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer likely = { 0 }, pages = { 0 }, shares = { 0 };
	PyObject *likely_object, *pages_object, *shares_object;
	struct vmp_mixture mixture;
	Py_ssize_t rates;
	size_t kinds;
	int rounds;

	if (!PyArg_ParseTuple(args, "OOOni:learn_shares", &likely_object, &pages_object, &shares_object, &rates,
			      &rounds) ||
	    !vmp_buffer_get(likely_object, "likely", VMP_FLOAT64, false, &likely) ||
	    !vmp_buffer_get(pages_object, "pages", VMP_FLOAT64, false, &pages) ||
	    !vmp_buffer_get(shares_object, "shares", VMP_FLOAT64, true, &shares))
		return NULL;

	mixture = (struct vmp_mixture) { likely.f64, rates > 0 ? (size_t)rates : 1, 0 };
	mixture.answers = likely.count / mixture.rates;
	kinds = shares.count / mixture.rates;
	if (rates < 1 || mixture.answers > VMP_MAX_ANSWERS || likely.count != mixture.answers * mixture.rates ||
	    shares.count != kinds * mixture.rates || pages.count != kinds * mixture.answers) {
		PyErr_SetString(PyExc_ValueError, "likely, pages, shares: shapes that do not fit");
		return NULL;
	}

	Py_BEGIN_ALLOW_THREADS
	for (size_t kind = 0; kind < kinds; kind++)
		vmp_learn(&mixture, pages.f64 + kind * mixture.answers, shares.f64 + kind * mixture.rates, rounds);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}
