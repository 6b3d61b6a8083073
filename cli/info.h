/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern info`: what its parts share. info.c owns the command and its output, info_memory.c the member on memory.
 * Threads: main.
 */
#ifndef CLI_INFO_H
#define CLI_INFO_H

#include "json.h"

/* The member "memory" of the object, or a section of text if j is NULL. Exit status; a failure was printed. */
int info_memory(json *j);

#endif
