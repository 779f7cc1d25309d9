/*
 * The text form of a pattern.
 *
 *   guest=3 arena=256 seed=7 vcpus=2 verify=1024 tick=20 huge=1
 *   library=8 calls=50
 *   phases=5000,3000 repeat=1 wait=1 run=/usr/bin/stress-ng,--vm,1
 *   touch=vcpu:0-1,range:0+64,range:128+32,order:zipf,rate:20,write:30,burst:8,phase:0
 *
 * arena, library, range: MiB (range: offset+length).  calls: per ms and vCPU.
 *  verify: KiB per second and guest.
 * tick: ms.  rate: touches per ms and vCPU, or "max".  write: percent.
 * stride: bytes, a multiple of 64.  burst: touches in a row in one 4 KiB page.
 * phases: ms each; the last one stays.  wait: touch nothing more, once all memory
 * is filled, until told to go.
 */
#include "pattern.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "vmp."
#define LINES_PER_MIB ((uint64_t)(1024 * 1024 / 64))
#define WORD_MAX_LEN 512

struct parser {
	struct vmp_pattern *pattern;
	char *error;
	size_t error_size;
};

__attribute__((format(printf, 2, 3))) static int fail(struct parser *parser, const char *format,
						      ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(parser->error, parser->error_size, format, args);
	va_end(args);
	return -EINVAL;
}

static int parse_number(struct parser *parser, const char *key, const char *text, uint64_t max,
			uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || *ret > max)
		return fail(parser, "%s: '%s' is not a number from 0 to %llu", key, text,
			    (unsigned long long)max);
	return 0;
}

static int parse_vcpus(struct parser *parser, const char *text, uint64_t *ret)
{
	unsigned int first, last;
	int length = 0;

	if (sscanf(text, "%u-%u%n", &first, &last, &length) != 2 || text[length]) {
		length = 0;
		if (sscanf(text, "%u%n", &first, &length) != 1 || text[length])
			return fail(parser, "vcpu: '%s' is not N or N-M", text);
		last = first;
	}
	if (first > last || last >= VMP_MAX_VCPUS)
		return fail(parser, "vcpu: '%s' is not within 0-%d", text, VMP_MAX_VCPUS - 1);
	for (unsigned int vcpu = first; vcpu <= last; vcpu++)
		*ret |= 1ULL << vcpu;
	return 0;
}

static int parse_range(struct parser *parser, const char *text, struct vmp_touch *touch)
{
	unsigned int offset_mib, length_mib;
	int length = 0;

	if (sscanf(text, "%u+%u%n", &offset_mib, &length_mib, &length) != 2 || text[length] ||
	    !length_mib)
		return fail(parser, "range: '%s' is not OFFSET+LENGTH in MiB", text);
	if (touch->nranges == VMP_MAX_RANGES)
		return fail(parser, "range: more than %d in one touch", VMP_MAX_RANGES);
	touch->ranges[touch->nranges].first_line = offset_mib * LINES_PER_MIB;
	touch->ranges[touch->nranges++].lines = length_mib * LINES_PER_MIB;
	touch->lines += length_mib * LINES_PER_MIB;
	return 0;
}

static int parse_order(struct parser *parser, const char *text, enum vmp_order *ret)
{
	static const char *const names[] = {
		[VMP_SEQUENTIAL] = "sequential",
		[VMP_RANDOM] = "random",
		[VMP_ZIPF] = "zipf",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!strcmp(text, names[i])) {
			*ret = (enum vmp_order)i;
			return 0;
		}
	}
	return fail(parser, "order: '%s' is not sequential, random or zipf", text);
}

static int parse_rate(struct parser *parser, const char *text, double *ret)
{
	char *end;

	if (!strcmp(text, "max")) {
		*ret = INFINITY;
		return 0;
	}
	*ret = strtod(text, &end);
	if (end == text || *end || !(*ret >= 0.0) || isinf(*ret))
		return fail(parser, "rate: '%s' is not touches per ms, or max", text);
	return 0;
}

static int parse_touch_number(struct parser *parser, const char *key, const char *text,
			      struct vmp_touch *touch)
{
	uint64_t number = 0;
	int err;

	if (!strcmp(key, "write")) {
		err = parse_number(parser, key, text, 100, &number);
		touch->write_percent = (unsigned int)number;
	} else if (!strcmp(key, "phase")) {
		err = parse_number(parser, key, text, VMP_MAX_PHASES - 1, &number);
		touch->phase = (int)number;
	} else if (!strcmp(key, "burst")) {
		err = parse_number(parser, key, text, 1 << 16, &touch->burst);
	} else if (!strcmp(key, "stride")) {
		err = parse_number(parser, key, text, 1 << 30, &number);
		touch->stride_lines = number / 64;
		if (!err && (!number || number % 64))
			err = fail(parser, "stride: '%s' is not a multiple of 64 bytes", text);
	} else {
		err = fail(parser, "touch: unknown key '%s'", key);
	}
	return err;
}

static int parse_touch_field(struct parser *parser, char *field, struct vmp_touch *touch)
{
	char *value = strchr(field, ':');

	if (!value)
		return fail(parser, "touch: '%s' has no ':'", field);
	*value++ = '\0';
	if (!strcmp(field, "vcpu"))
		return parse_vcpus(parser, value, &touch->vcpus);
	if (!strcmp(field, "range"))
		return parse_range(parser, value, touch);
	if (!strcmp(field, "order"))
		return parse_order(parser, value, &touch->order);
	if (!strcmp(field, "rate"))
		return parse_rate(parser, value, &touch->rate_per_ms);
	return parse_touch_number(parser, field, value, touch);
}

static int parse_touch(struct parser *parser, char *text)
{
	struct vmp_touch touch = { .order = VMP_RANDOM, .stride_lines = 1, .burst = 1, .phase = -1 };
	char *save = NULL;
	int err;

	for (char *field = strtok_r(text, ",", &save); field; field = strtok_r(NULL, ",", &save)) {
		err = parse_touch_field(parser, field, &touch);
		if (err)
			return err;
	}
	if (!touch.vcpus || !touch.nranges)
		return fail(parser, "touch: needs vcpu: and range:");
	if (parser->pattern->ntouches == VMP_MAX_TOUCHES)
		return fail(parser, "touch: more than %d", VMP_MAX_TOUCHES);
	parser->pattern->touches[parser->pattern->ntouches++] = touch;
	return 0;
}

static int parse_phases(struct parser *parser, char *text)
{
	struct vmp_pattern *pattern = parser->pattern;
	char *save = NULL;
	int err;

	for (char *field = strtok_r(text, ",", &save); field; field = strtok_r(NULL, ",", &save)) {
		if (pattern->nphases == VMP_MAX_PHASES)
			return fail(parser, "phases: more than %d", VMP_MAX_PHASES);
		err = parse_number(parser, "phases", field, UINT32_MAX,
				   &pattern->phase_ms[pattern->nphases]);
		if (!err && !pattern->phase_ms[pattern->nphases])
			err = fail(parser, "phases: a phase lasts at least 1 ms");
		if (err)
			return err;
		pattern->nphases++;
	}
	return 0;
}

static int parse_run(struct parser *parser, char *text)
{
	struct vmp_pattern *pattern = parser->pattern;
	char *save = NULL;

	for (char *field = strtok_r(text, ",", &save); field; field = strtok_r(NULL, ",", &save)) {
		if (pattern->nrun == VMP_MAX_ARGS)
			return fail(parser, "run: more than %d words", VMP_MAX_ARGS);
		pattern->run[pattern->nrun] = strdup(field);
		if (!pattern->run[pattern->nrun++])
			return fail(parser, "run: out of memory");
	}
	return 0;
}

static int parse_scalar(struct parser *parser, const char *key, const char *value)
{
	struct vmp_pattern *pattern = parser->pattern;
	const struct {
		const char *key;
		uint64_t max;
	} known[] = {
		{ "guest", 62 },      { "arena", 1 << 20 }, { "seed", UINT64_MAX },
		{ "verify", 1 << 30 }, { "tick", 1000 },     { "vcpus", VMP_MAX_VCPUS },
		{ "huge", 1 },	      { "repeat", 1 },     { "wait", 1 },
		{ "library", 1 << 12 }, { "calls", 1 << 20 },
	};
	uint64_t numbers[sizeof(known) / sizeof(*known)] = {
		pattern->guest_id, pattern->arena_mib, pattern->seed,
		pattern->verify_kib_per_s, pattern->tick_ms, pattern->nvcpus,
		(uint64_t)pattern->huge_pages, (uint64_t)pattern->repeat_phases,
		(uint64_t)pattern->wait,
		pattern->library_mib,
		pattern->calls_per_ms,
	};
	size_t i = 0;
	int err;

	while (i < sizeof(known) / sizeof(*known) && strcmp(key, known[i].key))
		i++;
	if (i == sizeof(known) / sizeof(*known))
		return fail(parser, "unknown key '%s'", key);
	err = parse_number(parser, key, value, known[i].max, &numbers[i]);
	if (err)
		return err;
	pattern->guest_id = (unsigned int)numbers[0];
	pattern->arena_mib = numbers[1];
	pattern->seed = numbers[2];
	pattern->verify_kib_per_s = numbers[3];
	pattern->tick_ms = (unsigned int)numbers[4];
	pattern->nvcpus = (unsigned int)numbers[5];
	pattern->huge_pages = (int)numbers[6];
	pattern->repeat_phases = (int)numbers[7];
	pattern->wait = (int)numbers[8];
	pattern->library_mib = numbers[9];
	pattern->calls_per_ms = numbers[10];
	return 0;
}

static int parse_word(struct parser *parser, char *word)
{
	char *value = strchr(word, '=');

	if (!value)
		return fail(parser, "'%s' is not key=value", word);
	*value++ = '\0';
	if (!strcmp(word, "touch"))
		return parse_touch(parser, value);
	if (!strcmp(word, "phases"))
		return parse_phases(parser, value);
	if (!strcmp(word, "run"))
		return parse_run(parser, value);
	if (!strcmp(word, "arena") && !strcmp(value, "max")) {
		parser->pattern->arena_mib = 0;
		return 0;
	}
	return parse_scalar(parser, word, value);
}

int vmp_pattern_parse(const char *text, int prefixed, struct vmp_pattern *ret, char *error,
		      size_t error_size)
{
	struct parser parser = { .pattern = ret, .error = error, .error_size = error_size };
	static const char space[] = " \t\r\n";

	*ret = (struct vmp_pattern){ .seed = 1, .tick_ms = 20, .huge_pages = 1 };
	for (text += strspn(text, space); *text; text += strspn(text, space)) {
		size_t length = strcspn(text, space);
		size_t skip = strncmp(text, PREFIX, strlen(PREFIX)) ? 0 : strlen(PREFIX);
		char word[WORD_MAX_LEN];
		int err;

		if (length >= sizeof(word))
			return fail(&parser, "a word is longer than %d characters",
				    WORD_MAX_LEN - 1);
		memcpy(word, text, length);
		word[length] = '\0';
		text += length;
		if (prefixed && !skip)
			continue;
		err = parse_word(&parser, word + skip);
		if (err)
			return err;
	}
	return ret->tick_ms ? 0 : fail(&parser, "tick: must be at least 1 ms");
}

int vmp_pattern_check(const struct vmp_pattern *pattern, uint64_t lines, char *error,
		      size_t error_size)
{
	for (size_t t = 0; t < pattern->ntouches; t++) {
		const struct vmp_touch *touch = &pattern->touches[t];

		if (pattern->nvcpus < VMP_MAX_VCPUS && touch->vcpus >> pattern->nvcpus) {
			snprintf(error, error_size, "touch %zu: a vcpu is not within 0-%u", t,
				 pattern->nvcpus - 1);
			return -EINVAL;
		}
		for (size_t r = 0; r < touch->nranges; r++) {
			if (touch->ranges[r].first_line + touch->ranges[r].lines <= lines)
				continue;
			snprintf(error, error_size,
				 "touch %zu: range %zu ends beyond the arena of %llu MiB", t, r,
				 (unsigned long long)(lines / LINES_PER_MIB));
			return -EINVAL;
		}
	}
	return 0;
}
