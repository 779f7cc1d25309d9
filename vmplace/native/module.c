/* The table of the C core; what each function promises is in _native.pyi. */
#include "core.h"

static PyMethodDef vmp_methods[] = {
	{ "learn_shares", vmp_learn_shares, METH_VARARGS, "learn_shares(likely, pages, shares, rates, rounds)" },
	{ "touch_rate_count", vmp_touch_rate_count, METH_VARARGS, "touch_rate_count(codes, shown, counts)" },
	{ "touch_rate_step", vmp_touch_rate_step, METH_VARARGS, "touch_rate_step(codes, shown, table)" },
	{ "rows_alike", vmp_rows_alike, METH_VARARGS, "rows_alike(rows, alike)" },
	{ "rows_some", vmp_rows_some, METH_VARARGS, "rows_some(rows, which, found)" },
	{ "rows_used", vmp_rows_used, METH_VARARGS, "rows_used(rows, which, used) -> how many" },
	{ "rows_bits", vmp_rows_bits, METH_VARARGS, "rows_bits(several, which, step, bits)" },
	{ "rows_kinds", vmp_rows_kinds, METH_VARARGS, "rows_kinds(several, used, uneven)" },
	{ "windows_marks", vmp_windows_marks, METH_VARARGS,
	  "windows_marks(rows, blocks, plane, apart, whole, marks) -> any" },
	{ "queue_length", vmp_queue_length, METH_VARARGS, "queue_length(rho, knee, load, slope)" },
	{ "place_traffic", vmp_place_traffic, METH_VARARGS, "place_traffic(heat, places, traffic)" },
	{ "place_costs", vmp_place_costs, METH_VARARGS, "place_costs(heat, places, prices, costs)" },
	{ "place_cheapest", vmp_place_cheapest, METH_VARARGS,
	  "place_cheapest(heat, places, prices, memory, move_price, copy_price, best)" },
	{ "read_pagemap", vmp_read_pagemap, METH_VARARGS, "read_pagemap(fd, hva, entries) -> entries read" },
	{ "folio_heads", vmp_folio_heads, METH_VARARGS, "folio_heads(fd, pfns, heads)" },
	{ "idle_mark", vmp_idle_mark, METH_VARARGS, "idle_mark(fd, pfns) -> words written" },
	{ "idle_collect", vmp_idle_collect, METH_VARARGS, "idle_collect(fd, pfns, accessed) -> touched" },
	{ "move_pages", vmp_move_pages, METH_VARARGS, "move_pages(pid, hvas, nids, status[, all_owners]) -> ns" },
	{ "page_nids", vmp_page_nids, METH_VARARGS, "page_nids(pid, hvas, status)" },
	{ "drain_lru", vmp_drain_lru, METH_NOARGS, "drain_lru()" },
	{ "measure_streams", vmp_measure_streams, METH_VARARGS,
	  "measure_streams(cpus, chased_mib, only, nids, bytes, duration_ms, read_bytes, spent_ns)" },
	{ "placement_open", vmp_placement_open, METH_VARARGS, "placement_open(pid, vm_fd) -> fd" },
	{ "placement_info", vmp_placement_info, METH_VARARGS, "placement_info(fd) -> tuple" },
	{ "placement_roots", vmp_placement_roots, METH_VARARGS, "placement_roots(fd, nodes, populate) -> copied" },
	{ "placement_harvest", vmp_placement_harvest, METH_VARARGS,
	  "placement_harvest(fd, gfn, npages, page, nids, accessed, written, clear) -> written is known" },
	{ "placement_replicate", vmp_placement_replicate, METH_VARARGS,
	  "placement_replicate(fd, nodes, gfns, npages, done, status) -> ranges handled" },
	{ "placement_move", vmp_placement_move, METH_VARARGS,
	  "placement_move(fd, gfns, nids, npages, status, flags) -> ns" },
	{ "placement_hints", vmp_placement_hints, METH_VARARGS,
	  "placement_hints(fd, spans, budget, period_ms, nr_entries)" },
	{ "placement_drain", vmp_placement_drain, METH_VARARGS,
	  "placement_drain(ring, table) -> records, lost, armed" },
	{ "perf_open", vmp_perf_open, METH_VARARGS, "perf_open(type, config, period, cpu) -> fd" },
	{ "perf_drain", vmp_perf_drain, METH_VARARGS, "perf_drain(ring, table) -> (samples, lost, throttled)" },
	{ "perf_newest", vmp_perf_newest, METH_VARARGS, "perf_newest(ring, content) -> bytes" },
	{ "perf_trace", vmp_perf_trace, METH_VARARGS, "perf_trace(config, tid) -> fd" },
	{ "perf_count", vmp_perf_count, METH_VARARGS, "perf_count(type, config, tid) -> fd" },
	{ NULL, NULL, 0, NULL },
};

static PyModuleDef_Slot vmp_slots[] = {
	{ 0, NULL },
};

static struct PyModuleDef vmp_module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_native",
	.m_doc = "The C core of vmplace.",
	.m_size = 0,
	.m_methods = vmp_methods,
	.m_slots = vmp_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
	return PyModuleDef_Init(&vmp_module);
}
