/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of fault points: a small table that is searched only while something is armed.
 * Threads: points from any (the table is under a lock), schedules from one. Tests: tests/unit/base/fault_test.c.
 */
#include "base/fault.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"
#include "base/rand.h"

#define FAULT_NAME_MAX 64

typedef struct schedule {
	char name[FAULT_NAME_MAX];
	uint64_t nth, count; /* nth 0: by probability */
	double probability;
	tn_rand rand;
	uint64_t hits, fired;
} schedule;

_Atomic uint32_t tn_fault_armed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static schedule schedules[TN_FAULTS_MAX];
static uint32_t scheduled;

static bool schedule_hit(schedule *s)
{
	bool fire;

	s->hits++;
	if (s->nth)
		fire = s->hits >= s->nth && s->hits - s->nth < s->count;
	else
		fire = tn_rand_double(&s->rand) < s->probability;
	s->fired += fire;
	return fire;
}

bool tn_fault_hit(const char *name)
{
	bool fire = false;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < scheduled; i++)
		if (strcmp(schedules[i].name, "*") == 0 || strcmp(schedules[i].name, name) == 0)
			fire |= schedule_hit(&schedules[i]);
	pthread_mutex_unlock(&lock);
	if (fire)
		TN_LOG(DEBUG, BASE, "fault point %s fires", name);
	return fire;
}

static tern_status add(const char *name, const schedule *what)
{
	schedule *s = NULL;

	if (!name[0] || strlen(name) >= FAULT_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "fault point '%s': a name has 1 to %d bytes", name,
			       FAULT_NAME_MAX - 1);
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < scheduled && !s; i++)
		if (strcmp(schedules[i].name, name) == 0)
			s = &schedules[i];
	if (!s && scheduled < TN_FAULTS_MAX)
		s = &schedules[scheduled++];
	if (s) {
		*s = *what;
		snprintf(s->name, sizeof(s->name), "%s", name);
	}
	atomic_store(&tn_fault_armed, scheduled);
	pthread_mutex_unlock(&lock);
	if (!s)
		return tn_fail(TERN_E_LIMIT, "fault point '%s': only %d schedules at a time", name,
			       TN_FAULTS_MAX);
	return TERN_OK;
}

tern_status tn_fault_set(const char *name, uint64_t nth, uint64_t count)
{
	if (nth == 0)
		return tn_fail(TERN_E_INVALID, "fault point '%s': hits are counted from 1", name);
	return add(name, &(schedule){.nth = nth, .count = count});
}

tern_status tn_fault_set_random(const char *name, double probability, uint64_t seed)
{
	if (!(probability >= 0 && probability <= 1))
		return tn_fail(TERN_E_INVALID, "fault point '%s': a probability is 0 to 1", name);
	return add(name, &(schedule){.probability = probability, .rand = {seed}});
}

/* "name:nth[:count]" or "name:p=0.01[:seed]" */
static tern_status apply_one(char *text)
{
	char *rest = text, *name = strsep(&rest, ":"), *when = strsep(&rest, ":"), *more = rest;
	uint64_t nth = 0, extra = 1;
	double probability = 0;
	char *end = NULL;
	bool random = when && strncmp(when, "p=", 2) == 0;

	if (when && random)
		probability = strtod(when + 2, &end);
	if (!when || (random && (*end || end == when + 2)) || (!random && !tn_parse_u64(when, &nth)) ||
	    (more && !tn_parse_u64(more, &extra)))
		return tn_fail(TERN_E_OPTION,
			       "fault point '%s': expected name:nth[:count] or name:p=0.01[:seed]", name);
	return random ? tn_fault_set_random(name, probability, extra) : tn_fault_set(name, nth, extra);
}

tern_status tn_fault_apply(const char *spec)
{
	char copy[256], *rest = copy, *one;

	if (strlen(spec) >= sizeof(copy))
		return tn_fail(TERN_E_OPTION, "fault schedules longer than %zu bytes", sizeof(copy) - 1);
	snprintf(copy, sizeof(copy), "%s", spec);
	while ((one = strsep(&rest, ",")))
		if (one[0] && apply_one(one) != TERN_OK)
			return TERN_E_OPTION;
	return TERN_OK;
}

void tn_fault_clear(void)
{
	pthread_mutex_lock(&lock);
	scheduled = 0;
	atomic_store(&tn_fault_armed, 0);
	pthread_mutex_unlock(&lock);
}

static uint64_t read_field(const char *name, bool fired)
{
	uint64_t value = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < scheduled; i++)
		if (strcmp(schedules[i].name, name) == 0)
			value = fired ? schedules[i].fired : schedules[i].hits;
	pthread_mutex_unlock(&lock);
	return value;
}

uint64_t tn_fault_hits(const char *name)
{
	return read_field(name, false);
}

uint64_t tn_fault_fired(const char *name)
{
	return read_field(name, true);
}
