/* How hot is a page?  Each window halves what is known and a touch adds 128. */
#include "core.h"

PyObject *vmp_age_heat(PyObject *module, PyObject *args)
{
	_cleanup_buffer_ struct vmp_buffer heat = { 0 }, accessed = { 0 };
	PyObject *heat_object, *accessed_object;

	if (!PyArg_ParseTuple(args, "OO:age_heat", &heat_object, &accessed_object) ||
	    !vmp_buffer_get(heat_object, "heat", VMP_UINT8, true, &heat) ||
	    !vmp_buffer_get(accessed_object, "accessed", VMP_UINT8, false, &accessed) ||
	    !vmp_buffer_same_count(&heat, "heat", &accessed, "accessed"))
		return NULL;

	Py_BEGIN_ALLOW_THREADS
	for (size_t i = 0; i < heat.count; i++)
		heat.u8[i] = (uint8_t)(heat.u8[i] >> 1 | (accessed.u8[i] ? 128 : 0));
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}
