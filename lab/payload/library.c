#include "library.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define FUNCTION_BYTES 64
/* mov $imm32,%eax; ret; the rest of the line is int3. */
#define MOV 0xb8
#define RET 0xc3
#define INT3 0xcc

static void write_function(uint8_t *code, uint32_t value)
{
	memset(code, INT3, FUNCTION_BYTES);
	code[0] = MOV;
	memcpy(code + 1, &value, sizeof(value));
	code[1 + sizeof(value)] = RET;
}

int vmp_library_init(struct vmp_library *library, uint64_t mib)
{
	size_t bytes = mib << 20;
	uint8_t *code;

	*library = (struct vmp_library){ .functions = bytes / FUNCTION_BYTES };
	if (!mib)
		return 0;
	code = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return -errno;
	for (uint64_t i = 0; i < library->functions; i++)
		write_function(code + i * FUNCTION_BYTES, (uint32_t)i);
	library->code = code;
	return mprotect(code, bytes, PROT_READ | PROT_EXEC) ? -errno : 0;
}

void vmp_library_call(struct vmp_library *library, uint64_t i)
{
	uint32_t (*function)(void);
	const uint8_t *code = library->code + i * FUNCTION_BYTES;

	memcpy(&function, &code, sizeof(function));
	if (function() != (uint32_t)i)
		atomic_fetch_add_explicit(&library->wrong, 1, memory_order_relaxed);
}
