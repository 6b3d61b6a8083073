/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of service "tern.rpc/2" that peers open. arg is the server.
 * Threads: the context's driver. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_INCOMING_H
#define TN_RPC_INCOMING_H

#include "rpc/rpc.h"

tern_status tn_rpc_on_open(tern_channel *channel, tern_channel_params *params, void *arg);

/* The nursery's work and timer. */
void tn_rpc_nursery_init(tn_rpc_server *server);

#endif
