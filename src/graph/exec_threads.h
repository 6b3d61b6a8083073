/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the option graph.threads, apart from exec.h: whoever reads options need not know graphs.
 *
 * Threads: any. Tests: tests/unit/graph/exec_crew_test.c.
 */
#ifndef TN_GRAPH_EXEC_THREADS_H
#define TN_GRAPH_EXEC_THREADS_H

#include <stdint.h>

#include <tern/status.h>

/* TERN_GRAPH_THREADS, for tn_exec_params.threads. TERN_E_OPTION. */
tern_status tn_exec_threads(uint32_t *threads);

#endif
