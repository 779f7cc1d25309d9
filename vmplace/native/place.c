/* Where do the accesses to pages go, and where would they cost least?  One pass over the pages each. */
#include "core.h"

#include <math.h>
#include <string.h>

#define VMP_ABSENT (-1)
#define VMP_REPLICATED (-2)
#define VMP_MAX_PLACES 128 /* a place is an int8 */

/* False with ValueError set unless @buffer holds @count items. */
static bool count_is(const struct vmp_buffer *buffer, const char *name, size_t count)
{
	if (buffer->count == count)
		return true;
	PyErr_Format(PyExc_ValueError, "%s: need %zu items, got %zu", name, count, buffer->count);
	return false;
}

/* Return N of a buffer that holds N x N items; 0 with ValueError set if there is none that fits a place. */
static size_t side_of(const struct vmp_buffer *square, const char *name)
{
	for (size_t side = 1; side <= VMP_MAX_PLACES; side++)
		if (side * side == square->count)
			return side;
	PyErr_Format(PyExc_ValueError, "%s: need a square of at most %d nodes", name, VMP_MAX_PLACES);
	return 0;
}

static bool places_are_valid(const struct vmp_buffer *places, size_t nodes)
{
	for (size_t p = 0; p < places->count; p++) {
		if (places->i8[p] < VMP_REPLICATED || places->i8[p] >= (int)nodes) {
			PyErr_Format(PyExc_ValueError, "places: no place %d", places->i8[p]);
			return false;
		}
	}
	return true;
}

static void add_traffic(const double *heat, const struct vmp_buffer *places, size_t nodes, double *traffic)
{
	memset(traffic, 0, nodes * nodes * sizeof(*traffic));
	for (size_t p = 0; p < places->count; p++, heat += nodes) {
		int place = places->i8[p];

		if (place == VMP_ABSENT)
			continue;
		for (size_t k = 0; k < nodes; k++)
			if (heat[k])
				traffic[k * nodes + (place == VMP_REPLICATED ? k : (size_t)place)] += heat[k];
	}
}

PyObject *vmp_place_traffic(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer heat = { 0 }, places = { 0 }, traffic = { 0 };
	PyObject *heat_object, *places_object, *traffic_object;
	size_t nodes;

	if (!PyArg_ParseTuple(args, "OOO:place_traffic", &heat_object, &places_object, &traffic_object) ||
	    !vmp_buffer_get(heat_object, "heat", VMP_FLOAT64, false, &heat) ||
	    !vmp_buffer_get(places_object, "places", VMP_INT8, false, &places) ||
	    !vmp_buffer_get(traffic_object, "traffic", VMP_FLOAT64, true, &traffic))
		return NULL;
	nodes = side_of(&traffic, "traffic");
	if (!nodes || !count_is(&heat, "heat", places.count * nodes) || !places_are_valid(&places, nodes))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	add_traffic(heat.f64, &places, nodes, traffic.f64);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *vmp_place_costs(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer heat = { 0 }, places = { 0 }, prices = { 0 }, costs = { 0 };
	PyObject *heat_object, *places_object, *prices_object, *costs_object;
	size_t nodes;

	if (!PyArg_ParseTuple(args, "OOOO:place_costs", &heat_object, &places_object, &prices_object,
			      &costs_object) ||
	    !vmp_buffer_get(heat_object, "heat", VMP_FLOAT64, false, &heat) ||
	    !vmp_buffer_get(places_object, "places", VMP_INT8, false, &places) ||
	    !vmp_buffer_get(prices_object, "prices", VMP_FLOAT64, false, &prices) ||
	    !vmp_buffer_get(costs_object, "costs", VMP_FLOAT64, true, &costs))
		return NULL;
	nodes = side_of(&prices, "prices");
	if (!nodes || !count_is(&heat, "heat", places.count * nodes) ||
	    !count_is(&costs, "costs", places.count) || !places_are_valid(&places, nodes))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	for (size_t p = 0; p < places.count; p++) {
		const double *row = heat.f64 + p * nodes;
		int place = places.i8[p];
		double cost = 0.0;

		for (size_t k = 0; place != VMP_ABSENT && k < nodes; k++)
			cost += row[k] * prices.f64[k * nodes + (place == VMP_REPLICATED ? k : (size_t)place)];
		costs.f64[p] = cost;
	}
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* @least: the lowest price of an access from each node, wherever the page lies. */
struct vmp_choice {
	size_t nodes;
	const double *prices;
	const uint8_t *memory;
	double least[VMP_MAX_PLACES];
};

static void set_least_prices(struct vmp_choice *choice)
{
	for (size_t k = 0; k < choice->nodes; k++) {
		const double *row = choice->prices + k * choice->nodes;

		/* A copy on the node itself, too. */
		choice->least[k] = row[k];
		for (size_t place = 0; place < choice->nodes; place++)
			if (choice->memory[place] && row[place] < choice->least[k])
				choice->least[k] = row[place];
	}
}

/* The nodes that use a page: most pages have few. */
struct vmp_users {
	const double *heat;
	size_t count;
	uint8_t node[VMP_MAX_PLACES];
};

/* False if nobody touched the page. */
static bool users_get(const struct vmp_choice *choice, const double *heat, struct vmp_users *ret)
{
	bool touched = false;

	ret->heat = heat;
	ret->count = 0;
	for (size_t k = 0; k < choice->nodes; k++) {
		ret->node[ret->count] = (uint8_t)k;
		ret->count += heat[k] != 0.0;
		touched |= heat[k] > 0.0;
	}
	return touched;
}

static double accesses_cost(const struct vmp_choice *choice, const struct vmp_users *users, size_t place)
{
	double cost = 0.0;

	for (size_t i = 0; i < users->count; i++) {
		size_t k = users->node[i];

		cost += users->heat[k] * choice->prices[k * choice->nodes + place];
	}
	return cost;
}

static double local_cost(const struct vmp_choice *choice, const struct vmp_users *users)
{
	double cost = 0.0;

	for (size_t i = 0; i < users->count; i++) {
		size_t k = users->node[i];

		cost += users->heat[k] * choice->prices[k * choice->nodes + k];
	}
	return cost;
}

/* Whether no place could save what it costs to get there: most pages of a settled guest end here. */
static bool is_settled(const struct vmp_choice *choice, const struct vmp_users *users, int8_t now, double price)
{
	double saved = 0.0;

	for (size_t i = 0; i < users->count; i++) {
		size_t k = users->node[i];

		saved += users->heat[k] * (choice->prices[k * choice->nodes + now] - choice->least[k]);
	}
	return saved < price;
}

static int8_t cheapest_place(const struct vmp_choice *choice, const double *heat, int8_t now, double move,
			     double copies)
{
	double least = INFINITY, cost;
	/* What may not move stays also where nothing may be. */
	bool stays = isinf(move);
	struct vmp_users users;
	int8_t ret = now;

	if (now == VMP_ABSENT || !users_get(choice, heat, &users))
		return now;
	if (now >= 0 && (choice->memory[now] || stays) && is_settled(choice, &users, now, fmin(move, copies)))
		return now;
	for (size_t place = 0; place < choice->nodes; place++) {
		if (!choice->memory[place] && !(stays && now == (int8_t)place))
			continue;
		cost = accesses_cost(choice, &users, place) + (now == (int8_t)place ? 0.0 : move);
		if (cost < least) {
			least = cost;
			ret = (int8_t)place;
		}
	}
	/* Infinite also where copies are there already: the page is about to be written. */
	if (isinf(copies))
		return ret;
	return local_cost(choice, &users) + (now == VMP_REPLICATED ? 0.0 : copies) < least ? VMP_REPLICATED : ret;
}

PyObject *vmp_place_cheapest(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer heat = { 0 }, places = { 0 }, prices = { 0 }, memory = { 0 };
	_cleanup_buffer_ struct vmp_buffer move = { 0 }, copy = { 0 }, best = { 0 };
	PyObject *objects[7];
	struct vmp_choice choice;

	if (!PyArg_ParseTuple(args, "OOOOOOO:place_cheapest", &objects[0], &objects[1], &objects[2], &objects[3],
			      &objects[4], &objects[5], &objects[6]) ||
	    !vmp_buffer_get(objects[0], "heat", VMP_FLOAT64, false, &heat) ||
	    !vmp_buffer_get(objects[1], "places", VMP_INT8, false, &places) ||
	    !vmp_buffer_get(objects[2], "prices", VMP_FLOAT64, false, &prices) ||
	    !vmp_buffer_get(objects[3], "memory", VMP_UINT8, false, &memory) ||
	    !vmp_buffer_get(objects[4], "move_price", VMP_FLOAT64, false, &move) ||
	    !vmp_buffer_get(objects[5], "copy_price", VMP_FLOAT64, false, &copy) ||
	    !vmp_buffer_get(objects[6], "best", VMP_INT8, true, &best))
		return NULL;
	choice = (struct vmp_choice){ side_of(&prices, "prices"), prices.f64, memory.u8, { 0 } };
	if (!choice.nodes || !count_is(&memory, "memory", choice.nodes) ||
	    !count_is(&heat, "heat", places.count * choice.nodes) ||
	    !count_is(&move, "move_price", places.count) || !count_is(&copy, "copy_price", places.count) ||
	    !count_is(&best, "best", places.count) || !places_are_valid(&places, choice.nodes))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	set_least_prices(&choice);
	for (size_t p = 0; p < places.count; p++)
		best.i8[p] = cheapest_place(&choice, heat.f64 + p * choice.nodes, places.i8[p], move.f64[p],
					    copy.f64[p]);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *vmp_queue_length(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer rho = { 0 }, load = { 0 }, slope = { 0 };
	PyObject *rho_object, *load_object, *slope_object;
	double knee;

	if (!PyArg_ParseTuple(args, "OdOO:queue_length", &rho_object, &knee, &load_object, &slope_object) ||
	    !vmp_buffer_get(rho_object, "rho", VMP_FLOAT64, false, &rho) ||
	    !vmp_buffer_get(load_object, "load", VMP_FLOAT64, true, &load) ||
	    !vmp_buffer_get(slope_object, "slope", VMP_FLOAT64, true, &slope) ||
	    !vmp_buffer_same_count(&rho, "rho", &load, "load") ||
	    !vmp_buffer_same_count(&rho, "rho", &slope, "slope"))
		return NULL;

	for (size_t i = 0; i < rho.count; i++) {
		/* What is not a number stays so. */
		double below = rho.f64[i] > knee ? knee : rho.f64[i], above = rho.f64[i] - knee;

		slope.f64[i] = 1 / ((1 - below) * (1 - below));
		load.f64[i] = below / (1 - below) + (above < 0 ? 0 : above) * slope.f64[i];
	}
	Py_RETURN_NONE;
}
