/* The table of the C core; what each function promises is in _native.pyi. */
#include "core.h"

static PyMethodDef vmp_methods[] = {
	{ "age_heat", vmp_age_heat, METH_VARARGS, "age_heat(heat, accessed)" },
	{ "read_pagemap", vmp_read_pagemap, METH_VARARGS, "read_pagemap(fd, hva, entries) -> entries read" },
	{ "folio_heads", vmp_folio_heads, METH_VARARGS, "folio_heads(fd, pfns, heads)" },
	{ "idle_mark", vmp_idle_mark, METH_VARARGS, "idle_mark(fd, pfns) -> words written" },
	{ "idle_collect", vmp_idle_collect, METH_VARARGS, "idle_collect(fd, pfns, accessed) -> touched" },
	{ "move_pages", vmp_move_pages, METH_VARARGS, "move_pages(pid, hvas, nids, status[, all_owners]) -> ns" },
	{ "page_nids", vmp_page_nids, METH_VARARGS, "page_nids(pid, hvas, status)" },
	{ "drain_lru", vmp_drain_lru, METH_NOARGS, "drain_lru()" },
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
