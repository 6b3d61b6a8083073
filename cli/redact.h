/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes out of a text what names its writer: host name, user, home folder; addresses keep their first part, so
 * that their kind and their network's size still tell something. Threads: main.
 */
#ifndef CLI_REDACT_H
#define CLI_REDACT_H

#include <stdio.h>

/*
 * Copy text to out, line by line, with these replaced:
 *   host name HOST, user USER, home folder ~     10.1.2.3 -> 10.1.x.x (loopback and 0.0.0.0 stay)
 *   02:00:5e:10:00:ff -> 02:00:5e:x              fd00:1234::5 -> fd00:1234::x, fe80::1 -> fe80::x
 *   0c42:a103:0055:1234 (GUID) -> 0c42:x
 */
void redact(FILE *out, const char *text);

#endif
