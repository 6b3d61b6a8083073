/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leading a save or a restore: one call to every server at once, and what is decided before. See saver.h.
 * Threads: one per object. Tests: tests/unit/ps/saver_test.c, delta_test.c,
 * whole_model_test.c.
 */
#ifndef TN_PS_SAVE_LEAD_H
#define TN_PS_SAVE_LEAD_H

#include <tern/ps_save.h>

#include "ps/client.h"
#include "ps/saver.h"
#include "store/ckpt.h"

#define TN_SAVE_ANSWER (4u << 20)

typedef struct tn_save_lead {
	tern_ps *ps;
	ps_route *route; /* held: hosts live with it */
	ps_host **hosts; /* servers that are alive at the begin, numbered from 0 */
	uint32_t servers;
	uint64_t map; /* version of the map that they are found by */
	uint64_t deadline_ns;
	tn_ps_save_msg msg;
	uint8_t args[TN_PS_SAVE_MAX];
	tern_op *ops;   /* per server */
	uint32_t sent;  /* servers that the last step was sent to */
	char **answers; /* per server, TN_SAVE_ANSWER */
} tn_save_lead;

/* The servers of the newest map that can be had. timeout_ns: of all that follows; 0 = an hour. NULL: no memory. */
tn_save_lead *tn_save_lead_new(tern_ps *ps, uint64_t timeout_ns);
void tn_save_lead_free(tn_save_lead *lead);

/* The step at every server, limit_ns for each; the first failure is the step's. All have answered when it returns. */
tern_status tn_save_step(tn_save_lead *lead, tn_ps_save_op op, uint64_t limit_ns);
/* Fails with the server's number and address before what is said already. */
tern_status tn_save_failed_at(const tn_save_lead *lead, uint32_t server, tern_status status);

/* What is saved. */
typedef struct tn_save_plan {
	bool track;          /* deltas may follow */
	bool delta;          /* to `base` */
	tn_ckpt_reader base; /* dir -1: none */
} tn_save_plan;

/*
 * Base or delta, as params want and servers can. On TERN_OK every server is ready for the cut. TERN_E_STATE: a delta was
 * wanted and can't be, in words.
 */
tern_status tn_save_decide(tn_save_lead *lead, const tern_ps_save_params *params, tn_save_plan *plan);
void tn_save_plan_end(tn_save_plan *plan);

#endif
