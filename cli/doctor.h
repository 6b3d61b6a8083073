/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern doctor`: what its parts share.
 *
 *   finding  one line: verdict, name of the check, what was found, what to change
 *   fact     what libibverbs and its devices say of themselves (tern_provider_describe)
 *   verdict  ok; warn: it works, or works without RDMA; fail: what this host has for jobs cannot be used
 *
 * doctor.c owns findings and the order of the checks; doctor_rdma.c, doctor_host.c and doctor_net.c look,
 * doctor_self.c tries, doctor_report.c writes the file to send in. Threads: main.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <stdbool.h>
#include <stdio.h>

#include "json.h"

#define DOCTOR_FACTS_MAX 1024

typedef enum verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL, VERDICTS } verdict;

typedef struct doctor_fact {
	char key[128];
	char value[384];
} doctor_fact;

typedef struct doctor {
	json *j;    /* NULL: text */
	FILE *copy; /* gets the text too, for the report; NULL: none */
	unsigned counts[VERDICTS];
	const char *peer;        /* NULL: none was named */
	const char *conformance; /* path of the program; NULL: not looked for */
	const char *cases;       /* only conformance cases with this in their name */
	char mode[16];           /* option verbs.mode */
	bool device;             /* there is an RDMA device */
	unsigned fact_count;
	doctor_fact *facts; /* [DOCTOR_FACTS_MAX] */
} doctor;

/* change: what to do about it; NULL with VERDICT_OK. */
__attribute__((format(printf, 5, 6))) void doctor_say(doctor *d, verdict v, const char *check,
						      const char *change, const char *fmt, ...);
/* For what is missing on the way to RDMA: a failure if there is a device or verbs are required, else a warning. */
verdict doctor_missing(const doctor *d);
/* The value of a fact of verbs, NULL if there is none. */
__attribute__((format(printf, 2, 3))) const char *doctor_fact_get(const doctor *d, const char *fmt, ...);

void doctor_library(doctor *d); /* doctor_rdma.c */
void doctor_devices(doctor *d);
void doctor_counters(doctor *d, const char *device, const char *port); /* doctor_net.c */
void doctor_netdev(doctor *d, const char *netdev);
void doctor_peer(doctor *d);
void doctor_host(doctor *d); /* doctor_host.c */

/* Exchange messages, puts and gets with a process of our own over that provider; says how it went. */
void doctor_self_test(doctor *d, const char *provider); /* doctor_self.c */
/* The other process: exit status; its result goes to standard output in one line. */
int doctor_self_peer(const char *address, const char *provider);

/* doctor_report.c: conformance and a sample of performance into details; findings are said. */
void doctor_trials(doctor *d, FILE *details);
/* Write the report; text: the findings. False: printed. */
bool doctor_write(const char *path, const char *text, const char *details);

#endif
