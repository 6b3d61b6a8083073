/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of service "tern.rpc/2" that peers open. arg is the server.
 * Threads: the context's driver. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_INCOMING_H
#define TN_RPC_INCOMING_H

#include <tern/channel.h>

tern_status tn_rpc_on_open(tern_channel *channel, tern_channel_params *params, void *arg);

#endif
